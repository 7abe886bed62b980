"""The Report document and its renderings: page, Markdown, terminal text. Renderers only read the document."""
