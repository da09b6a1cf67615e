"""The console: pages that the edge serves to browsers, and whom they are shown to.

page ─▶ Console ─┬─▶ Assets      shell, scripts, styles: a table built at the start
                 ├─▶ Sessions    login by token or one-time code; a cookie that no script reads
                 └─▶ Rim         the edge's own API, as whoever logged in
"""
