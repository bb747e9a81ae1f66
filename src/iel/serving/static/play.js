// The playground: what the user does becomes a scene, the scene goes to the server, its answer is drawn.
// One scene is sent at a time; changes made meanwhile are sent after its answer.

import { Board, fillBar } from "/static/draw.js";

const HINTS = {
  "direct": "Heads straight for the goal in the latent space.",
  "rec-mid": "Heads for recursive midpoints among states of the data.",
  "greedy": "Heads for the best node within ten steps, without a search.",
  "sym-graph": "Shortest route over states of the data; costs are the same in both directions.",
  "asym-graph": "Shortest route over states of the data; costs depend on the direction.",
};
const FIELDS = {
  graph: "Predicted steps to the goal, added up along the graph.",
  straight: "Predicted steps to the goal, as the network says directly.",
  none: "",
};
const $ = (id) => document.getElementById(id);
const board = new Board($("map"));
const state = {
  world: null, model: 0, start: null, goal: null, planner: "", field: "graph", tool: "goal", follow: true,
  strokes: [], sent: 0, answered: 0, answer: null, agent: null, running: false, ready: false, roundTrip: 0,
};
Object.assign(window, { board, playground: state }); // for the curious, and for tests
let socket = null, dirty = false, strokesDirty = false, graphTimer = 0, sentAt = 0, toastTimer = 0, slowTimer = 0, drawing = null, pointer = null;
let stepping = false, stale = false, steppedAt = 0; // a frame of the agent is awaited, and whether it is still wanted

// ---------------------------------------------------------------- the server

async function open(number) {
  state.model = number;
  state.ready = false;
  $("loading").classList.remove("off");
  const answer = await fetch(`/play/world/${number}`);
  const world = await answer.json();
  if (!answer.ok) return say(world.error, true);
  state.world = world;
  Object.assign(state, { start: world.start, goal: world.goal, strokes: [], agent: null, running: false, follow: true });
  const graphs = world.planners.filter((name) => name.endsWith("graph"));
  state.planner = world.planner;
  if (!world.predicts_steps) state.field = "none";
  else if (!graphs.length || state.field === "none") state.field = graphs.length ? "graph" : "straight";
  board.setWorld(world);
  describe(world, graphs);
  connect();
}

function connect() {
  socket?.close();
  const own = (socket = new WebSocket(`${location.origin.replace("http", "ws")}/play/ws/${state.model}`));
  $("link").dataset.state = "waiting";
  own.onopen = () => {
    $("link").dataset.state = "open";
    wait("");
    state.sent = state.answered = 0;
    stepping = stale = false;
    strokesDirty = state.strokes.length > 0;
    setAgent(null);
    send(true);
    own.send(JSON.stringify({ speed: Number($("speed").value) }));
  };
  own.onmessage = (event) => own === socket && receive(JSON.parse(event.data));
  own.onclose = () => {
    if (own !== socket) return;
    $("link").dataset.state = "closed";
    wait("The connection is lost: is the server still running?");
    setTimeout(() => own === socket && connect(), 1200);
  };
}

function send(force = false, graph = false) {
  dirty = true;
  if (!force && state.sent !== state.answered) return;
  if (socket?.readyState !== WebSocket.OPEN) return;
  dirty = false;
  const scene = {
    id: ++state.sent, start: state.start, goal: state.goal, planner: state.planner, field: state.field,
    graph: graph || (board.show.graph && !board.graph),
  };
  sentAt = performance.now();
  clearTimeout(slowTimer); // a planner that is used for the first time is built, which takes seconds
  slowTimer = setTimeout(() => state.sent !== state.answered && wait(`Building ${scene.planner}…`), 400);
  socket.send(JSON.stringify(strokesDirty ? { scene, strokes: state.strokes } : { scene }));
  strokesDirty = false;
}

function receive(message) {
  if (message.type !== "agent") wait("");
  if (message.error) {
    if (state.sent !== state.answered) state.answered = state.sent;
    else stepping = stale = state.running = false;
    return say(message.error, true);
  }
  if (message.type === "agent") {
    stepping = false;
    if (!stale) setAgent(message);
    stale = false;
    const rest = message.state === "walking" ? 33 - (performance.now() - steppedAt) : 150; // one at its goal waits for another
    return void setTimeout(step, Math.max(0, rest));
  }
  state.answered = message.id;
  state.answer = message;
  state.roundTrip = performance.now() - sentAt;
  if (!state.agent || state.agent.state !== "walking") showPath(message, true);
  if (!state.follow && !dirty && message.path.length) board.goal = message.path.at(-1); // where a click on a wall leads
  board.setField(message.field);
  board.off = new Set(message.off ?? []);
  if (pointer) tip(pointer); // the number under the cursor is another one now
  if (message.graph) board.setGraph(message.graph);
  $("latency").textContent = message.ms.toFixed(message.ms < 10 ? 1 : 0);
  const most = board.field?.most ?? 0;
  $("half").textContent = most ? Math.round(most / 2) : "";
  $("most").textContent = most ? `${Math.round(most)} steps` : "";
  if (!state.ready) {
    state.ready = true;
    document.documentElement.dataset.ready = "1";
    $("loading").classList.add("off");
  }
  if (dirty) send();
  else if (board.show.graph && !message.graph) {
    clearTimeout(graphTimer); // edges are many: only when the goal rests
    graphTimer = setTimeout(() => state.sent === state.answered && send(false, true), 160);
  }
}

function wait(text) {
  $("wait-text").textContent = text;
  $("wait").hidden = !text;
}

function showPath(message, smooth) {
  board.dashed = !state.planner.endsWith("graph");
  board.setPath(message.path, smooth);
  $("steps").textContent = message.steps === null ? "–" : Math.round(message.steps);
  $("waypoints").textContent = message.path.length > 2 ? message.path.length - 2 : message.path.length ? "0" : "–";
  if (message.problem) say(message.problem, true);
  else if ($("toast").dataset.problem) $("toast").classList.remove("on"); // it holds no longer
}

function setAgent(frame) {
  const before = state.agent?.state;
  state.agent = frame;
  board.setAgent(frame);
  if (frame) showPath(frame, false);
  else state.running = false;
  const words = {
    ready: "at the start", walking: `walking, step ${frame?.step}`, lost: "no route from here",
    reached: `reached the goal after ${frame?.step} steps; move the goal to continue`,
    timeout: `stopped at the limit of ${frame?.step} steps; press reset`,
  };
  $("agent-state").textContent = frame ? words[frame.state] : "standing by";
  $("agent-state").dataset.state = frame?.state ?? "none";
  if (frame?.state === "reached" && before === "walking") say(`Reached the goal after ${frame.step} steps.`);
  $("run-icon").textContent = state.running ? "❚❚" : "▶";
  $("run-text").textContent = state.running ? "pause" : "walk";
}

// ---------------------------------------------------------------- what the user does

function step() {
  if (!state.running || stepping || socket?.readyState !== WebSocket.OPEN) return;
  stepping = true;
  steppedAt = performance.now();
  socket.send(JSON.stringify({ agent: "step" }));
}

function run() {
  if (!state.world?.live) return;
  state.running = !state.running;
  step();
  if (state.running && state.follow && matchMedia("(hover: hover)").matches)
    say("The agent chases your cursor; click to pin the goal.");
  $("run-icon").textContent = state.running ? "❚❚" : "▶";
  $("run-text").textContent = state.running ? "pause" : "walk";
}

function reset() {
  if (state.world?.live) socket.send(JSON.stringify({ agent: "reset" }));
  stale = stepping;
  setAgent(null);
  send();
}

function setGoal(at) {
  state.goal = board.goal = at;
  send();
}

function setStart(at) {
  state.start = board.start = at;
  if (state.agent) reset();
  send();
}

function setFollow(on) {
  state.follow = on;
  if (on) setTool("goal");
  press("follow", on);
}

function setTool(tool) {
  state.tool = tool;
  for (const button of $("tools").children) button.setAttribute("aria-pressed", button.dataset.tool === tool);
  if (tool !== "wall" && tool !== "erase") board.brush = null;
}

function setPlanner(name) {
  state.planner = name;
  for (const button of $("planners").children) button.setAttribute("aria-pressed", button.textContent === name);
  $("planner-hint").textContent = HINTS[name] ?? "";
  describeField();
  board.setGraph(null);
  send();
}

function setField(kind) {
  state.field = kind;
  for (const button of $("fields").children) button.setAttribute("aria-pressed", button.dataset.field === kind);
  describeField();
  $("scale").style.opacity = kind === "none" ? 0.25 : 1;
  send();
}

function describeField() {
  const drawn = state.field === "graph" && !state.planner.endsWith("graph") ? "straight" : state.field;
  $("field-hint").textContent = FIELDS[drawn];
}

function erase(at) {
  const [sx, sy] = board.scale, reach = 1.6 * board.brushRadius, left = [];
  let changed = false;
  for (const points of state.strokes) {
    let piece = [];
    for (const point of points) {
      if (Math.hypot((point[0] - at[0]) / sx, (point[1] - at[1]) / sy) > reach) piece.push(point);
      else {
        changed = true;
        if (piece.length) left.push(piece);
        piece = [];
      }
    }
    if (piece.length) left.push(piece);
  }
  if (changed) setStrokes(left);
}

function setStrokes(strokes) {
  state.strokes = board.strokes = strokes.slice(-64);
  board.refresh();
  strokesDirty = true;
  send();
}

function extend(at) {
  const [sx, sy] = board.scale, last = drawing.at(-1);
  const gap = Math.hypot((at[0] - last[0]) / sx, (at[1] - last[1]) / sy);
  if (gap < 0.5 * board.brushRadius || drawing.length >= 500) return;
  drawing.push(at);
  setStrokes(state.strokes);
}

const map = $("map");
map.addEventListener("pointerdown", (event) => {
  if (!state.ready || event.button > 0) return;
  map.setPointerCapture(event.pointerId);
  const at = board.toWorld(event), tool = event.shiftKey ? "start" : state.tool;
  state.dragging = tool;
  if (tool === "goal") {
    setFollow(false);
    setGoal(at);
  } else if (tool === "start") setStart(at);
  else if (tool === "wall") {
    if (!state.planner.endsWith("graph")) say("Only graph planners see walls.");
    drawing = [at];
    setStrokes([...state.strokes, drawing]);
  } else erase(at);
});
map.addEventListener("pointermove", (event) => {
  if (!state.ready) return;
  const at = board.toWorld(event), tool = state.dragging;
  board.changed = true;
  board.brush = state.tool === "wall" || state.tool === "erase" ? at : null;
  if (tool === "wall") extend(at);
  else if (tool === "erase") erase(at);
  else if (tool === "start") setStart(at);
  else if (tool === "goal" || (state.follow && state.tool === "goal" && !event.shiftKey)) setGoal(at);
  tip((pointer = event));
});
for (const kind of ["pointerup", "pointercancel"])
  map.addEventListener(kind, () => {
    state.dragging = drawing = null;
  });
map.addEventListener("pointerleave", () => {
  board.brush = pointer = null;
  $("tip").classList.remove("on");
});

function tip(event) {
  const field = board.field, { width, height } = state.world.view.raster, [left, right, bottom, top] = state.world.view.extent;
  const [x, y] = board.toWorld(event);
  const i = Math.floor(((x - left) / (right - left)) * width), j = Math.floor(((y - bottom) / (top - bottom)) * height);
  const value = field && i >= 0 && j >= 0 && i < width && j < height ? field.known[j * width + i] : -1;
  const shown = value >= 0 && !(state.follow && state.tool === "goal");
  $("tip").classList.toggle("on", shown);
  if (!shown) return;
  $("tip").textContent = `${Math.round(value)} steps`;
  const box = map.getBoundingClientRect();
  $("tip").style.transform = `translate(${event.clientX - box.left + 14}px, ${event.clientY - box.top + 16}px)`;
}

// With the map focused, arrow keys move the goal, or the start when that is the tool.
map.addEventListener("keydown", (event) => {
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
  if (!move || !state.ready) return;
  event.preventDefault();
  const { extent } = state.world.view, at = state.tool === "start" ? state.start : state.goal;
  const moved = [0, 1].map((i) => at[i] + 0.02 * move[i] * (extent[2 * i + 1] - extent[2 * i]));
  if (state.tool === "start") return setStart(moved);
  setFollow(false);
  setGoal(moved);
});

const KEYS = {
  g: () => setTool("goal"), s: () => setTool("start"), w: () => setTool("wall"), e: () => setTool("erase"),
  c: () => setStrokes([]), h: () => setFollow(!state.follow), " ": run, r: reset,
  n: () => $("show-graph").click(), l: () => $("show-lines").click(), d: () => $("show-data").click(),
  f: () => {
    const kinds = [...$("fields").children].filter((button) => !button.disabled).map((button) => button.dataset.field);
    if (kinds.length) setField(kinds[(kinds.indexOf(state.field) + 1) % kinds.length]);
  },
};
addEventListener("keydown", (event) => {
  if (!state.ready || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(select|input)$/i.test(event.target.tagName) && event.target.type !== "checkbox") return;
  if (event.key === " " && /^(button|input|a)$/i.test(event.target.tagName)) return; // it presses what has the focus
  const number = Number(event.key);
  if (number >= 1 && number <= state.world.planners.length) setPlanner(state.world.planners[number - 1]);
  const act = KEYS[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
});

// A button that was pressed by mouse or touch gives the focus back, so that Space starts the agent.
addEventListener("click", (event) => event.detail && event.target.closest("button")?.blur());

// ---------------------------------------------------------------- the panel

function describe(world, graphs) {
  $("subtitle").textContent = `${world.name} · ${world.algo} · ${world.env ?? "own logs"}`;
  document.title = `${world.name} · iel playground`;
  $("planners").replaceChildren(...world.planners.map((name, i) => {
    const button = document.createElement("button");
    button.textContent = name;
    button.title = `${HINTS[name] ?? name} (key ${i + 1})`;
    button.onclick = () => setPlanner(name);
    return button;
  }));
  for (const button of $("fields").children) {
    const kind = button.dataset.field;
    button.disabled = (kind !== "none" && !world.predicts_steps) || (kind === "graph" && !graphs.length);
  }
  $("agent-section").hidden = !world.live;
  $("no-agent").hidden = world.live;
  board.start = state.start;
  board.goal = state.goal;
  board.strokes = state.strokes;
  setFollow(true);
  setTool("goal");
  setField(state.field);
  setPlanner(state.planner);
}

function press(id, on) {
  $(id).setAttribute("aria-pressed", on);
}

function say(text, trouble = false) {
  const toast = $("toast");
  toast.textContent = text;
  toast.style.borderColor = trouble ? "var(--goal)" : "";
  toast.dataset.problem = trouble ? "1" : "";
  toast.classList.add("on");
  if (!state.ready && trouble) $("loading-text").textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => toast.classList.remove("on"), trouble ? 3200 : 2200);
}

for (const button of $("tools").children) button.onclick = () => setTool(button.dataset.tool);
for (const button of $("fields").children) button.onclick = () => setField(button.dataset.field);
for (const [id, layer] of [["show-graph", "graph"], ["show-lines", "lines"], ["show-data", "data"]])
  $(id).onchange = (event) => {
    board.show[layer] = event.target.checked;
    board.ground = null;
    board.refresh();
    if (layer === "graph") send();
  };
$("follow").onclick = () => setFollow(!state.follow);
$("clear").onclick = () => setStrokes([]);
$("run").onclick = run;
$("reset").onclick = reset;
$("speed").oninput = (event) => socket.send(JSON.stringify({ speed: Number(event.target.value) }));
document.querySelectorAll("button").forEach((button) => button.addEventListener("click", (event) => event.detail && button.blur()));
fillBar($("bar"));

const models = await (await fetch("/play/models")).json();
$("models-row").hidden = models.length < 2;
$("models").replaceChildren(...models.map((model, i) => new Option(`${model.name} (${model.algo})`, i)));
$("models").onchange = (event) => open(Number(event.target.value));
open(0);
