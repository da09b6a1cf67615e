// Looks at what changes by itself, again and again while the page is seen.
const LONGEST_PAUSE_MS = 10_000;

/**
 * Calls `look` now and every so often; `said` gets what went wrong, or null. Returns what looks at
 * once and what ends it.
 */
export function looking(look, pauseMs, said) {
  let due = 0, over = false, pause = pauseMs, turn = 0;

  async function now() {
    clearTimeout(due);
    const mine = ++turn;
    try {
      await look(() => !over && mine === turn);
      pause = pauseMs;
      if (!over && mine === turn) said(null);
    } catch (error) {
      pause = Math.min(LONGEST_PAUSE_MS, 2 * pause);
      if (!over && mine === turn) said(error);
      if (error.status === 401) over = true;
    }
    if (!over && mine === turn && !document.hidden) due = setTimeout(now, pause);
  }

  const seen = () => { if (!document.hidden && !over) now(); };
  document.addEventListener("visibilitychange", seen);
  now();
  return {
    now,
    stop() {
      over = true;
      clearTimeout(due);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
