"""The console: pages that edges and the control plane serve, and whom they are shown to.

page ─▶ Console ─┬─▶ Assets      shell, scripts, styles: a table built at the start
                 ├─▶ Sessions    login by token or one-time code; a cookie that no script reads
                 └─▶ Rim         the edge's own API, as whoever logged in
"""
