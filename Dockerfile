# syntax=docker/dockerfile:1
# The server. Build: docker build -t traceanalyzer .   How to run it: docs/server.md

FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY traceanalyzer traceanalyzer
COPY templates templates
RUN python -m venv /opt/traceanalyzer \
 && /opt/traceanalyzer/bin/python -m pip install --no-cache-dir --disable-pip-version-check '.[server]' \
 && /opt/traceanalyzer/bin/python -m pip check

FROM python:3.12-slim-bookworm
COPY --from=build /opt/traceanalyzer /opt/traceanalyzer
# A number, so that Kubernetes can see that it is not root (runAsNonRoot); no shell, no home to write to.
RUN groupadd --system --gid 10001 traceanalyzer \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin traceanalyzer \
 && install -d -o 10001 -g 10001 -m 0700 /data
ENV PATH=/opt/traceanalyzer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TRACEANALYZER_FOLDER=/data
USER 10001:10001
VOLUME ["/data"]
WORKDIR /data
EXPOSE 8321
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8321/api/v1/health', timeout=4)"]
ENTRYPOINT ["traceanalyzer"]
# Others can reach this address, so the server starts only once a token exists: traceanalyzer token create.
CMD ["serve", "--host", "0.0.0.0"]
