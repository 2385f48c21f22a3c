"""The web console under /console: server-made pages, a little script, live over one stream.

`app` is the door: who signs in, what a form must carry, which headers go out. Each `pages_*` module
is one page and its actions, a few functions of `Visit`. Templates escape everything; what comes
from definitions and upstreams is cut to a length before it gets there.
"""
