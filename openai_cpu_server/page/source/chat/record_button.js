// Records speech if the browser permits the microphone: on pages of this machine, and over HTTPS.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../base/html.js";
import { IconButton } from "../base/controls.js";
import { playingTime } from "../base/numbers.js";
import { useNow } from "./now.js";

/** `onFile` gets the recording, `onProblem` the reason why there is none. */
export function RecordButton({ onFile, onProblem }) {
  const [recorder, setRecorder] = useState(null);
  const left = useRef(false); // whether another conversation or model was chosen
  const open = useRef(null);
  useEffect(() => () => {
    left.current = true;
    release(open.current);
  }, []);
  if (!navigator.mediaDevices?.getUserMedia || !globalThis.MediaRecorder) return null;

  const begin = async () => {
    try {
      open.current = await navigator.mediaDevices.getUserMedia({ audio: true });
      if (left.current) release(open.current);
      else setRecorder(recording(open.current, end));
    } catch (error) {
      release(open.current);
      onProblem(`This browser does not let the page record: ${error.message}.`);
    }
  };
  const end = (file) => {
    release(open.current);
    if (left.current) return;
    setRecorder(null);
    onFile(file);
  };
  const isOn = recorder !== null;
  return html`<${IconButton} icon=${isOn ? "stop" : "microphone"} label=${isOn ? "Stop recording" : "Record"} kind=${isOn ? "recording" : ""} pressed=${isOn} onClick=${isOn ? () => recorder.stop() : begin} />
    ${isOn && html`<${Length} />`}`;
}

/** Duration so far. */
function Length() {
  const [begun] = useState(Date.now());
  const now = useNow(250);
  return html`<span class="soft recorded">${playingTime(Math.max(0, now - begun) / 1000)}</span>`;
}

/** A running recorder. `end` gets the file when it is stopped, or when the stream ends by itself. */
function recording(stream, end) {
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  const name = `Recording at ${new Date().toLocaleTimeString("en-GB")}`;
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  recorder.onstop = () => end(new File(pieces, name, { type: recorder.mimeType }));
  recorder.start();
  return recorder;
}

/** Closes the microphone. */
function release(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}
