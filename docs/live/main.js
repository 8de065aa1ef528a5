/** The live page: its controls, and the animation of a race. */

import { loadModels } from "./load.js";
import { makeStreams } from "./noise.js";
import { drawMark, Picture } from "./picture.js";
import { Race } from "./race.js";

/* global data, byId -- from page_shell.html */

const ABOUT = {
  autoregressive: "One token per forward pass.",
  jacobi: "Exact. Its drafts are what the target sampled in earlier passes.",
  lantern_chain: "Relaxed. Similar codes also count for a draft, so tokens may differ.",
};
const FIRST_CAPTION = { size: "small", colour: "white", shape: "ring", relation: "above", size_2: "large", colour_2: "blue", shape_2: "triangle", background: "grass" };
const ALONE = "alone"; // no relation: the caption has a single object
const PACES = { seconds: [1 / 5, 1 / 10, 1 / 20, 1 / 50, 1 / 100, 1 / 200], forwards: [2, 4, 8, 16, 32] }; // per second
const WANTED_SECONDS = 8; // duration of autoregressive decoding at the initial pace
const LONGEST_FRAME = 0.1; // seconds; a page in the background resumes where it stopped
const stillness = matchMedia("(prefers-reduced-motion: reduce)");
const state = { race: null, isRunning: false, seed: 0, frame: 0, request: 0 };
let models;

// --- caption

/** Add a menu to the caption. */
function addSelect(name, words, label) {
  const select = document.createElement("select");
  select.id = name;
  select.setAttribute("aria-label", label);
  for (const word of words) select.add(new Option(word, word));
  select.value = FIRST_CAPTION[name];
  select.addEventListener("change", begin);
  byId("caption").append(select);
}

function addCaption() {
  const { size, colour, shape, relation, background } = data.words;
  for (const [suffix, place] of [["", "first"], ["_2", "second"]]) {
    byId("caption").append(Object.assign(document.createElement("span"), { textContent: "a", id: `article${suffix}` }));
    addSelect(`size${suffix}`, size, `Size of the ${place} object`);
    addSelect(`colour${suffix}`, colour, `Colour of the ${place} object`);
    addSelect(`shape${suffix}`, shape, `Shape of the ${place} object`);
    if (!suffix) addSelect("relation", [...relation, ALONE], "Relation of the objects");
  }
  byId("caption").append("on");
  addSelect("background", background, "Background");
}

/** Return the caption, and hide the menus that it does not need. */
function captionOf() {
  const [first, second] = ["", "_2"].map((suffix) => ["size", "colour", "shape"].map((name) => byId(name + suffix).value).join(" "));
  const relation = byId("relation").value;
  for (const name of ["article_2", "size_2", "colour_2", "shape_2"]) byId(name).hidden = relation === ALONE;
  const objects = relation === ALONE ? `a ${first}` : `a ${first} ${relation} a ${second}`;
  return `${objects} on ${byId("background").value}`;
}

// --- lanes

/** Add the card of a method. */
function addLane(method) {
  const article = document.createElement("article");
  article.className = "lane";
  article.style.setProperty("--method", method.colour);
  article.innerHTML = `<h2></h2><p class="about"></p><canvas role="img"></canvas><div class="bar"><div></div></div>
<dl><div><dt>Tokens</dt><dd class="tokens"></dd></div><div><dt>Forward passes</dt><dd class="forwards"></dd></div>
<div><dt>Tokens / forward</dt><dd class="rate"></dd></div><div><dt>Seconds</dt><dd class="seconds"></dd></div>
<div><dt>ms / forward</dt><dd class="cost"></dd></div><div><dt>Equal tokens</dt><dd class="equal"></dd></div></dl>`;
  article.querySelector("h2").textContent = method.label;
  article.querySelector(".about").textContent = ABOUT[method.id];
  byId("lanes").append(article);
  method.article = article;
  method.picture = new Picture(article.querySelector("canvas"), models.decoder);
}

/** Return the drafts that a lane shows after its tokens, and the mark of each position. */
function stageOf(lane) {
  const { last, tokens } = lane;
  const marks = [];
  if (lane.isDone) return { name: "done", drafts: [], marks };
  const clock = clockOf();
  const before = clock === "forwards" ? lane.forwards : lane.seconds;
  const isDrafting = state.race.now - before > (lane.due(clock) - before) / 2;
  if (isDrafting || !last) {
    const { drafts } = lane.coming;
    drafts.forEach((_, index) => (marks[tokens.length + index] = "draft"));
    return { name: "drafting", drafts, marks };
  }
  const first = tokens.length - last.emitted.length;
  last.emitted.forEach((_, index) => (marks[first + index] = index < last.numAccepted ? "accepted" : "sampled"));
  const drafts = last.drafts.slice(last.emitted.length);
  drafts.forEach((_, index) => (marks[tokens.length + index] = "rejected"));
  return { name: "verified", drafts, marks };
}

/** Show the counters and the image of a lane, if they have changed. */
function showLane(lane, baseline) {
  const { method, tokens, forwards, seconds } = lane;
  const stage = stageOf(lane);
  const isComparable = lane !== baseline && lane.isDone && baseline.isDone;
  const key = [forwards, stage.name, isComparable].join();
  if (lane.shown === key) return;
  lane.shown = key;
  const { numTokens } = models.target;
  const write = (name, text) => (method.article.querySelector(`.${name}`).textContent = text);
  write("tokens", `${tokens.length} of ${numTokens}`);
  write("forwards", forwards);
  write("rate", forwards ? (tokens.length / forwards).toFixed(2) : "–");
  write("seconds", seconds.toFixed(3));
  write("cost", forwards ? ((1000 * seconds) / forwards).toFixed(1) : "–");
  write("equal", isComparable ? `${equalTokens(lane, baseline)} of ${numTokens}` : "–");
  method.article.querySelector(".bar div").style.width = `${(100 * tokens.length) / numTokens}%`;
  method.article.querySelector("canvas").setAttribute("aria-label", `${method.label}: ${tokens.length} of ${numTokens} tokens of “${captionOf()}”`);
  method.picture.draw(tokens, stage.drafts, stage.marks);
}

const equalTokens = (lane, baseline) => lane.tokens.filter((token, index) => token === baseline.tokens[index]).length;

function show() {
  for (const lane of state.race.lanes) showLane(lane, state.race.lanes[0]);
  byId("pause").textContent = state.isRunning || state.race.isDone ? "Pause" : "Resume";
  byId("pause").disabled = state.race.isDone;
}

// --- settings

const clockOf = () => document.querySelector("[name=clock]:checked").value;
const sliders = ["guidance", "temperature", "k", "delta"];

function addSettings() {
  const relaxed = data.methods.find((method) => method.k);
  byId("k").max = data.mostNearest;
  Object.entries({ guidance: data.sampling.guidance, k: relaxed.k, delta: relaxed.delta }).forEach(([name, value]) => (byId(name).value = value));
  const showValue = (name) => (byId(name).parentElement.querySelector("output").textContent = byId(name).value);
  for (const name of sliders) {
    showValue(name);
    byId(name).addEventListener("input", () => showValue(name));
    byId(name).addEventListener("change", begin);
  }
}

const settingsOf = () => ({ topK: data.sampling.topK, ...Object.fromEntries(sliders.map((name) => [name, Number(byId(name).value)])) });

/** Offer the paces of the chosen clock, and choose one at which autoregressive decoding takes about WANTED_SECONDS. */
function offerPaces(secondsPerForward) {
  const clock = clockOf();
  const total = models.target.numTokens * (clock === "forwards" ? 1 : secondsPerForward);
  const distance = (pace) => Math.abs(Math.log(total / pace / WANTED_SECONDS));
  const text = (pace) => (clock === "forwards" ? `${pace} per second` : `slow motion, 1/${Math.round(1 / pace)}`);
  byId("pace").replaceChildren(...PACES[clock].map((pace) => new Option(text(pace), pace)));
  byId("pace").value = PACES[clock].reduce((best, pace) => (distance(pace) < distance(best) ? pace : best));
}

// --- animation

/** Make all noise of an image, so that a race does not wait for it. */
function makeNoise(noise) {
  const { numTokens, config } = models.target;
  for (let position = 0; position < numTokens; position++) {
    for (const stream of [noise.target, noise.draft]) stream.gumbel(position, config.vocab_size);
  }
}

/** Start a race with the current caption, seed and settings. */
function begin() {
  byId("seed-number").textContent = state.seed;
  if (state.noiseSeed !== state.seed) {
    [state.noise, state.noiseSeed] = [makeStreams(data.keys[state.seed]), state.seed];
    makeNoise(state.noise);
  }
  state.race = new Race(data.methods, models, captionOf(), state.noise, settingsOf());
  byId("news").textContent = "";
  resume();
}

function resume() {
  state.isRunning = !state.race.isDone;
  state.frame = performance.now();
  show();
  cancelAnimationFrame(state.request); // of the race that this one replaces
  state.request = requestAnimationFrame(tick);
}

/** Let the time since the last frame pass in the race. */
function tick(now) {
  if (!state.isRunning) return;
  const elapsed = Math.min(LONGEST_FRAME, (now - state.frame) / 1000);
  state.frame = now;
  state.race.advance(stillness.matches ? Infinity : Math.max(0, elapsed) * Number(byId("pace").value), clockOf());
  if (state.race.isDone) {
    state.isRunning = false;
    byId("news").textContent = state.race.lanes.map(result).join(" ");
  }
  show();
  if (state.isRunning) state.request = requestAnimationFrame(tick);
}

function result(lane) {
  return `${lane.method.label}: ${lane.forwards} forward passes, ${lane.seconds.toFixed(2)} s.`;
}

function pause() {
  if (!state.isRunning) return resume();
  state.isRunning = false;
  show();
}

/** Generate an image by each method without showing it, so that the browser compiles the code, and time it. */
function warmUp() {
  const race = new Race(data.methods, models, captionOf(), makeStreams(data.keys[0]), settingsOf());
  race.advance(Infinity, "forwards");
  return race.lanes[0].seconds / race.lanes[0].forwards;
}

async function start() {
  models = await loadModels(data);
  addCaption();
  data.methods.forEach(addLane);
  addSettings();
  for (const canvas of document.querySelectorAll("[data-mark]")) {
    canvas.width = canvas.height = 48;
    drawMark(canvas.getContext("2d"), canvas.dataset.mark, 0, 0, canvas.width);
  }
  const secondsPerForward = warmUp();
  offerPaces(secondsPerForward);
  byId("generate").addEventListener("click", begin);
  byId("pause").addEventListener("click", pause);
  byId("seed").addEventListener("click", () => {
    state.seed = (state.seed + 1) % data.keys.length;
    begin();
  });
  for (const radio of document.querySelectorAll("[name=clock]")) {
    radio.addEventListener("change", () => {
      offerPaces(secondsPerForward);
      begin();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== " " || event.target !== document.body) return;
    event.preventDefault();
    pause();
  });
  for (const button of document.querySelectorAll("button")) button.disabled = false;
  byId("status").hidden = true;
  begin();
}

start().catch((error) => {
  byId("status").textContent = error.message;
  throw error;
});
