import { useEffect, useState } from "preact/hooks";

/** The time, read again every so many milliseconds; null: once. */
export function useNow(everyMs) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (everyMs === null) return undefined;
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
