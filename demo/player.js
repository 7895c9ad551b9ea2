// Plays the samples that `props.value` names as they arrive: 16 bit, one rate. At their end they can be played again and saved.
// data-state is idle, waiting, playing, paused or ended.
const RATE_HZ = 24000;
const AHEAD_S = 0.08;
const root = element.querySelector(".os-player");
const words = root.querySelector(".os-player-words");
const button = root.querySelector("button");
const link = root.querySelector("a");
const LABELS = { idle: "Pause", waiting: "Pause", playing: "Pause", paused: "Resume", ended: "Play again" };
let context = null;
let current = null;
let latest = null;

function show(state, text) {
  root.dataset.state = state;
  words.textContent = text;
  button.textContent = LABELS[state];
  button.disabled = state === "waiting" || state === "idle";
  link.hidden = state !== "ended";
  if (latest !== null) link.href = `sound/${latest}.wav`;
}

function stop() {
  if (current === null) return;
  current.fetching.abort();
  current.sources.forEach((source) => source.stop());
  current = null;
  show("ended", "Stopped.");
}

function schedule(playing, samples) {
  const buffer = context.createBuffer(1, samples.length, RATE_HZ);
  const channel = buffer.getChannelData(0);
  for (let index = 0; index < samples.length; index += 1) channel[index] = samples[index] / 32768;
  const source = context.createBufferSource();
  source.buffer = buffer;
  source.connect(context.destination);
  playing.at = Math.max(playing.at, context.currentTime + AHEAD_S);
  source.start(playing.at);
  playing.at += buffer.duration;
  playing.total += buffer.duration;
  playing.sources.add(source);
  source.onended = () => playing.sources.delete(source);
}

function report(playing) {
  if (current !== playing) return;
  if (playing.isComplete && context.currentTime >= playing.at) {
    show("ended", playing.total > 0 ? `${playing.total.toFixed(1)} s of audio.` : "No audio arrived.");
    current = null;
    return;
  }
  if (playing.total > 0) {
    const left = Math.max(0, playing.at - context.currentTime);
    const state = context.state === "running" ? "playing" : "paused";
    show(state, `${state === "playing" ? "Playing" : "Paused"} (${left.toFixed(1)} s buffered)`);
  }
  setTimeout(() => report(playing), 100);
}

async function play(id) {
  stop();
  latest = id;
  context = context ?? new AudioContext({ sampleRate: RATE_HZ });
  await context.resume();
  const playing = { at: 0, total: 0, sources: new Set(), isComplete: false };
  playing.fetching = new AbortController();
  current = playing;
  window.dispatchEvent(new CustomEvent("omnistage-sound", { detail: root }));
  show("waiting", "Waiting for the first audio.");
  report(playing);
  const answer = await fetch(`sound/${id}`, { signal: playing.fetching.signal });
  const reader = answer.body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const whole = bytes.length - (bytes.length % 2);
    rest = bytes.slice(whole);
    if (whole > 0) schedule(playing, new Int16Array(bytes.buffer.slice(0, whole)));
  }
  playing.isComplete = true;
}

function start(id) {
  play(id).catch((error) => {
    if (error.name !== "AbortError") show("ended", "The audio could not be fetched.");
  });
}

button.addEventListener("click", () => {
  if (current === null) start(latest);
  else if (context.state === "running") context.suspend();
  else context.resume();
});
window.addEventListener("omnistage-sound", (event) => {
  if (event.detail !== root) stop();
});
watch("value", () => {
  if (props.value) start(props.value);
  else stop();
});
