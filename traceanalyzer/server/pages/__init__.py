"""The server's pages: what a browser is shown, and what its forms do. They work without JavaScript.

words       every sentence, in one catalogue
moments     times: exact, and how long ago
rendering   the templates, the style sheets and scripts, and the policy that goes with every page
visit       one request to a page: who asks, what may be done, what is answered
lines       rows of the database as what a page prints
listing, trace, sharing, jobs, sending, signing   one module for what belongs together
multipart   the files of a form, read as they arrive
routes      which address is whose
"""

from __future__ import annotations

from traceanalyzer.server.pages.routes import router

__all__ = ["router"]
