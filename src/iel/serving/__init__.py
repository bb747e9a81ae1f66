"""A policy server and a playground in the browser, for runs and exports.

    iel play RUN            a page on this machine
    iel serve RUN           POST /v1/act, /v1/plan, /v1/steps; a WebSocket for control loops

Needs the extra `serve`. `iel.serving.client` needs nothing but Python and numpy.
"""
