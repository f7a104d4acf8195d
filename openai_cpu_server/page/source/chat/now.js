import { useEffect, useState } from "preact/hooks";

/** The time, updated at this interval in milliseconds. null: read once. */
export function useNow(everyMs) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (everyMs === null) return undefined;
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
