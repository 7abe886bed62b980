"""The routes of the API, version 1.

shapes    what requests and answers look like
traces    PUT, HEAD, GET, DELETE of one trace, and the list
reports   a trace's report as HTML, JSON or Markdown
links     share links
state     health, version, metrics
"""

from __future__ import annotations

PREFIX = "/api/v1"
"""Every route is made with it, so that the log and the metrics name them as clients do."""
