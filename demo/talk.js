// Talks to the session behind `talk`: the microphone is sent as it is heard, answers are played as they come.
// data-state is idle, starting, listening, hearing (somebody speaks) or answering.
const RATE_HZ = 24000;
const AHEAD_S = 0.08;
const root = element.querySelector(".os-talk");
const button = root.querySelector("button");
const line = root.querySelector(".os-talk-line");
const words = root.querySelector(".os-talk-words");
const TEXTS = { idle: "", starting: "Connecting.", listening: "Listening.", hearing: "You speak.", answering: "Answering." };
const WORKLET = `registerProcessor("omnistage-microphone", class extends AudioWorkletProcessor {
  process([[channel]]) {
    if (channel) this.port.postMessage(Int16Array.from(channel, (one) => Math.max(-1, Math.min(1, one)) * 32767));
    return true;
  }
});`;
let talking = null;

function show(state, text) {
  root.dataset.state = state;
  line.textContent = text ?? TEXTS[state];
  button.textContent = state === "idle" ? "Talk" : "Stop";
}

function stop(text) {
  const ended = talking;
  talking = null;
  if (ended !== null) {
    ended.socket?.close();
    ended.microphone?.getTracks().forEach((track) => track.stop());
    ended.context.close();
  }
  show("idle", text);
}

function send(event) {
  if (talking?.socket?.readyState === WebSocket.OPEN) talking.socket.send(JSON.stringify(event));
}

function base64(samples) {
  return btoa(String.fromCharCode(...new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength)));
}

function play(event) {
  const bytes = Uint8Array.from(atob(event.delta), (one) => one.charCodeAt(0));
  const samples = new Int16Array(bytes.buffer);
  const { context } = talking;
  if (talking.answer?.id !== event.item_id) talking.answer = { id: event.item_id, began: null, total: 0, sources: new Set() };
  const { answer } = talking;
  const buffer = context.createBuffer(1, samples.length, RATE_HZ);
  buffer.getChannelData(0).set(Float32Array.from(samples, (one) => one / 32768));
  const source = context.createBufferSource();
  source.buffer = buffer;
  source.connect(context.destination);
  talking.at = Math.max(talking.at, context.currentTime + AHEAD_S);
  answer.began ??= talking.at;
  source.start(talking.at);
  talking.at += buffer.duration;
  answer.total += buffer.duration;
  answer.sources.add(source);
  source.onended = () => answer.sources.delete(source);
  show("answering");
}

function interrupt() {
  const { answer, context } = talking;
  if (!answer || answer.sources.size === 0) return;
  answer.sources.forEach((source) => source.stop());
  answer.sources.clear();
  const heard = Math.max(0, Math.min(answer.total, context.currentTime - answer.began));
  talking.at = 0;
  root.dataset.interrupted = Number(root.dataset.interrupted ?? 0) + 1;
  send({ type: "conversation.item.truncate", item_id: answer.id, content_index: 0, audio_end_ms: Math.floor(1000 * heard) });
}

function take(event) {
  if (event.type === "session.created") {
    send({ type: "session.update", session: { type: "realtime", output_modalities: ["audio"] } });
    show("listening");
  } else if (event.type === "input_audio_buffer.speech_started") {
    interrupt();
    show("hearing");
  } else if (event.type === "input_audio_buffer.speech_stopped") {
    show("listening");
  } else if (event.type === "response.output_audio.delta") {
    play(event);
  } else if (event.type === "response.output_audio_transcript.done") {
    const said = document.createElement("p");
    said.textContent = event.transcript;
    words.append(said);
  } else if (event.type === "response.done" && event.response.status === "failed") {
    line.textContent = event.response.status_details.error.message;
  } else if (event.type === "error") {
    line.textContent = event.error.message;
  }
}

async function start() {
  const begun = (talking = { context: new AudioContext({ sampleRate: RATE_HZ }), at: 0, answer: null });
  show("starting");
  words.replaceChildren();
  const { context } = begun;
  begun.microphone = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true } });
  const url = URL.createObjectURL(new Blob([WORKLET], { type: "text/javascript" }));
  await context.audioWorklet.addModule(url);
  URL.revokeObjectURL(url);
  if (talking !== begun) return;
  const address = new URL("talk", window.location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const socket = (begun.socket = new WebSocket(address));
  socket.onmessage = (message) => talking === begun && take(JSON.parse(message.data));
  socket.onclose = (closed) => talking === begun && stop(closed.reason || "The server has ended the conversation.");
  const node = new AudioWorkletNode(context, "omnistage-microphone");
  let waiting = [];
  node.port.onmessage = ({ data }) => {
    waiting.push(data);
    if (waiting.length < 8) return; // 43 ms
    const whole = new Int16Array(waiting.reduce((total, one) => total + one.length, 0));
    waiting.reduce((offset, one) => (whole.set(one, offset), offset + one.length), 0);
    waiting = [];
    if (talking === begun) send({ type: "input_audio_buffer.append", audio: base64(whole) });
  };
  context.createMediaStreamSource(begun.microphone).connect(node);
}

button.addEventListener("click", () => {
  if (talking !== null) stop();
  else if (!navigator.mediaDevices) show("idle", "Browsers give microphones to https:// and localhost only.");
  else start().catch((error) => stop(error.name === "NotAllowedError" ? "The microphone is not allowed." : String(error)));
});
show("idle");
