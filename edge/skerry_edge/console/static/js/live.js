// What is live: a snapshot, then deltas without a gap, over one stream that is opened again when it breaks.
import { Refused, events, stream } from "./api.js";

const HIDDEN_MS = 30_000; // after which a page that nobody sees gives its stream up
const STALE_MS = 3000;
const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 10_000;

/**
 * Follows a view. `on.snapshot` and `on.delta` get frames; `on.state` gets the seconds since the last
 * word, or null while all is well, and `on.refused` the edge's sentence. Returns what ends it.
 */
export function follow(view, on) {
  let stopper = null, over = false, heard = performance.now(), pause = FIRST_PAUSE_MS, hiding = 0, waiting = 0;

  async function run() {
    stopper = new AbortController();
    let seq = null;
    try {
      for await (const { event, data } of events(await stream(view, stopper.signal))) {
        if (!data || event === "end") break;
        const frame = JSON.parse(data);
        heard = performance.now();
        if (event === "snapshot") on.snapshot(frame);
        else if (frame.seq === seq + 1) on.delta(frame);
        else break; // a gap: a snapshot, please
        seq = frame.seq;
        pause = FIRST_PAUSE_MS;
      }
    } catch (error) {
      if (error instanceof Refused && error.status && error.status !== 401) {
        on.refused(error.message);
        if (error.status === 403) return;
      }
    }
    stopper.abort();
    stopper = null;
    if (over || document.hidden) return;
    waiting = setTimeout(run, pause * (0.5 + Math.random()));
    pause = Math.min(LONGEST_PAUSE_MS, 2 * pause);
  }

  function seen() {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => stopper?.abort(), HIDDEN_MS);
    else if (!stopper) {
      clearTimeout(waiting);
      run();
    }
  }

  const watch = setInterval(() => {
    const age = performance.now() - heard;
    on.state(age > STALE_MS && !document.hidden ? Math.round(age / 1000) : null);
  }, 500);
  document.addEventListener("visibilitychange", seen);
  run();
  return () => {
    over = true;
    clearInterval(watch);
    clearTimeout(hiding);
    clearTimeout(waiting);
    document.removeEventListener("visibilitychange", seen);
    stopper?.abort();
  };
}
