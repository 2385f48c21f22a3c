"""The gateway at work for minutes on end, and whether anything in it grows that should not."""
