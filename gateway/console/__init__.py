"""The web console under /console: server-made pages, a little script, live over one stream.

`app` has sign-in, the checks of posted forms, the routes and the stream of an open page. `pages`
has the parts of every page. `calls`, `executions`, `connections`, `tools` and `access` are
the pages and their actions, functions of a `Visit`; `charts` counts and draws for all of them.
Templates escape everything; words of definitions and upstreams are cut to a length before a
template gets them.
"""
