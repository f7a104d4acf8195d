// A canvas with the screen's resolution. It is drawn only when it has changed and is visible.
import { useEffect, useRef } from "preact/hooks";
import { isDark } from "../shell/theme.js";

/** Colours of the page's custom properties, read once for each theme. */
const known = { dark: null, colours: new Map() };

export function colour(name) {
  if (known.dark !== isDark.peek()) {
    known.dark = isDark.peek();
    known.colours.clear();
  }
  if (!known.colours.has(name)) {
    known.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return known.colours.get(name);
}

/** `draw(context, width, height)` in CSS pixels. Returns a ref for the canvas, and a function that redraws it. */
export function useCanvas(draw) {
  const canvas = useRef(null);
  const state = useRef({ frame: 0, seen: true, draw });
  state.current.draw = draw;
  const ask = useRef(() => {
    const now = state.current;
    if (!now.frame && now.seen) now.frame = requestAnimationFrame(() => paint(canvas.current, now));
  });
  useEffect(() => {
    const resized = new ResizeObserver(ask.current);
    const watched = new IntersectionObserver(([entry]) => {
      state.current.seen = entry.isIntersecting;
      ask.current();
    });
    const drawn = canvas.current;
    resized.observe(drawn);
    watched.observe(drawn);
    const untheme = isDark.subscribe(() => ask.current());
    return () => {
      resized.disconnect();
      watched.disconnect();
      untheme();
      cancelAnimationFrame(state.current.frame);
    };
  }, []);
  return [canvas, ask.current];
}

function paint(canvas, state) {
  state.frame = 0;
  if (!canvas) return;
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  if (width && height) state.draw(context, width, height);
}
