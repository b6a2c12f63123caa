"""An HTTP/1 server for many long streams: `asyncio.Protocol` on llhttp (httptools), no framework on the token path.

Generic: knows nothing of OpenAI, models or the bus.
`server.HttpServer` is what others start, `exchange.Exchange` what handlers get.
Hardening (limits, timeouts, smuggling, slow readers) lives here and only here.
The choice is explained in docs/decisions/0001-http-shell.md.
"""
