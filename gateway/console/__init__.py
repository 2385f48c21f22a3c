"""The web console under /console: server-made pages, a little script, live over one stream.

`app` is the door: signing in, what a form must carry, routes, the stream of an open page. `pages`
has what every page is made of. `calls`, `executions`, `connections`, `tools` and `access` are
the pages and their actions, functions of a `Visit`; `charts` counts and draws for all of them.
Templates escape everything; words of definitions and upstreams are cut to a length before they get
there.
"""
