// Plays the sound that `props.value` names while it is made: 16-bit samples at one rate.
// The state is told by attributes: data-state is idle, waiting, playing or ended.
const RATE_HZ = 24000;
const AHEAD_S = 0.08;
const root = element.querySelector(".os-player");
const words = root.querySelector(".os-player-words");
const button = root.querySelector("button");
let context = null;
let current = null;

function show(state, text) {
  root.dataset.state = state;
  words.textContent = text;
  button.disabled = state !== "waiting" && state !== "playing";
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

function tell(playing) {
  if (current !== playing) return;
  if (playing.isComplete && context.currentTime >= playing.at) {
    show("ended", playing.total > 0 ? `Played ${playing.total.toFixed(1)} s.` : "No sound came.");
    current = null;
    return;
  }
  if (playing.total > 0 && context.state === "running") {
    const left = Math.max(0, playing.at - context.currentTime);
    show("playing", `Playing; ${left.toFixed(1)} s are here.`);
  }
  setTimeout(() => tell(playing), 100);
}

async function play(id) {
  stop();
  context = context ?? new AudioContext({ sampleRate: RATE_HZ });
  await context.resume();
  const playing = { at: 0, total: 0, sources: new Set(), isComplete: false };
  playing.fetching = new AbortController();
  current = playing;
  window.dispatchEvent(new CustomEvent("omnistage-sound", { detail: root }));
  show("waiting", "Waiting for the first sound.");
  tell(playing);
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

button.addEventListener("click", stop);
window.addEventListener("omnistage-sound", (event) => {
  if (event.detail !== root) stop();
});
watch("value", () => {
  if (props.value) {
    play(props.value).catch((error) => {
      if (error.name !== "AbortError") show("ended", "The sound could not be fetched.");
    });
  } else {
    stop();
  }
});
