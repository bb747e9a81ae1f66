// The map on its canvas: a world in its own units, drawn in layers. Nothing here talks to the server.

const RAMP = ["#fdea4f", "#c3e04a", "#7fd15f", "#46bd77", "#279f88", "#28838d", "#30698d", "#3c4a88", "#452a75", "#3a1259"]
  .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));

export function colour(share) {
  const scaled = Math.min(0.9999, Math.max(0, share)) * (RAMP.length - 1);
  const low = Math.floor(scaled), rest = scaled - low;
  return RAMP[low].map((value, i) => Math.round(value + rest * (RAMP[low + 1][i] - value)));
}

export function fillBar(canvas) {
  const pen = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    pen.fillStyle = `rgb(${colour(x / canvas.width)})`;
    pen.fillRect(x, 0, 1, canvas.height);
  }
}

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const ease = (t) => (t >= 1 ? 1 : 1 - (1 - t) ** 3);

export class Board {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.world = null;
    this.field = this.oldField = null;
    this.fieldSince = this.pathSince = 0;
    this.path = [];
    this.oldPath = [];
    this.strokes = [];
    this.trail = [];
    this.agent = this.oldAgent = null;
    this.agentSince = 0;
    this.graph = null;
    this.off = new Set();
    this.show = { graph: false, lines: true, data: false };
    this.brush = null;
    this.drawn = 0;
    this.changed = true;
    this.below = this.layer = null;
    this.readTheme();
    window.matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => this.readTheme());
    new ResizeObserver(() => this.fit()).observe(canvas);
    requestAnimationFrame((now) => this.frame(now));
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    this.theme = {};
    for (const name of ["back", "wall", "floor", "ink", "soft", "start", "goal", "path", "trail", "drawn", "line", "sans"])
      this.theme[name] = style.getPropertyValue(`--${name}`).trim();
    this.ground = null;
    this.refresh();
  }

  setWorld(world) {
    this.world = world;
    this.field = this.oldField = this.graph = this.agent = this.oldAgent = null;
    this.path = this.oldPath = [];
    this.trail = [];
    this.off = new Set();
    this.fit();
  }

  // ---------------------------------------------------------------- coordinates

  fit() {
    const ratio = window.devicePixelRatio || 1;
    const box = this.canvas.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    this.layer = null;
    this.refresh();
    if (!this.world) return;
    const [left, right, bottom, top] = this.frameExtent;
    const margin = (this.world.view.walls ? 20 : 34) * ratio;
    let x = (this.canvas.width - 2 * margin) / (right - left);
    let y = (this.canvas.height - 2 * margin) / (top - bottom);
    if (this.world.view.equal) x = y = Math.min(x, y);
    this.unit = { x, y };
    this.shift = {
      x: (this.canvas.width - x * (right - left)) / 2 - x * left,
      y: (this.canvas.height + y * (top - bottom)) / 2 + y * bottom,
    };
    this.ground = null;
    if (this.field) this.field.lines = null;
    this.graphPath = null;
  }

  get frameExtent() {
    // Outer walls are shown in part only: what happens, happens inside.
    const { extent, walls } = this.world.view;
    if (!walls) return extent;
    const inset = (0.62 * (extent[1] - extent[0])) / walls[0].length;
    return [extent[0] + inset, extent[1] - inset, extent[2] + inset, extent[3] - inset];
  }

  clip(pen) {
    const [left, right, bottom, top] = this.frameExtent;
    const [x, y] = this.toPixel([left, top]), [x2, y2] = this.toPixel([right, bottom]);
    pen.beginPath();
    pen.roundRect(x, y, x2 - x, y2 - y, 14 * this.ratio);
    pen.clip();
  }

  toPixel([x, y]) {
    return [this.shift.x + this.unit.x * x, this.shift.y - this.unit.y * y];
  }

  toWorld(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) * this.ratio, y = (event.clientY - box.top) * this.ratio;
    return [(x - this.shift.x) / this.unit.x, (this.shift.y - y) / this.unit.y];
  }

  // In units of the map's scale.
  get brushRadius() {
    return this.world.view.brush;
  }

  get scale() {
    const { extent, equal } = this.world.view;
    return equal ? [1, 1] : [extent[1] - extent[0], extent[3] - extent[2]];
  }

  pixelsOf(radius) {
    const [sx, sy] = this.scale;
    return radius * Math.sqrt(sx * this.unit.x * sy * this.unit.y);
  }

  // ---------------------------------------------------------------- what is shown

  setField(values) {
    this.oldField = this.field;
    this.fieldSince = performance.now();
    this.field = values && this.paint(values);
    this.refresh();
  }

  paint(values) {
    const { width, height, filled } = this.world.view.raster;
    const grid = new Float32Array(width * height).fill(-1);
    let most = 1;
    filled.forEach((pixel, i) => {
      grid[pixel] = values[i] < 0 ? -1 : values[i] / 10;
      most = Math.max(most, grid[pixel]);
    });
    // Into the walls, so that neither smoothing nor contour lines stop short of them.
    const grown = this.world.view.walls ? grow(grow(grid, width, height), width, height) : grid;
    const image = new ImageData(width, height);
    for (let pixel = 0; pixel < grown.length; pixel++) {
      if (grown[pixel] < 0) continue;
      const row = height - 1 - Math.floor(pixel / width), at = 4 * (row * width + (pixel % width));
      const [r, g, b] = colour(grown[pixel] / most);
      image.data[at] = r, image.data[at + 1] = g, image.data[at + 2] = b, image.data[at + 3] = 255;
    }
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return { canvas, known: grid, grid: grown, most, lines: null };
  }

  setPath(path, smooth) {
    this.oldPath = smooth ? this.shownPath(performance.now()) : [];
    this.path = path;
    this.pathSince = performance.now();
  }

  shownPath(now) {
    const share = still.matches ? 1 : ease((now - this.pathSince) / 170);
    if (share >= 1 || this.oldPath.length < 2 || this.path.length < 2) return this.path;
    const before = resample(this.oldPath, 72), after = resample(this.path, 72);
    return after.map(([x, y], i) => [before[i][0] + share * (x - before[i][0]), before[i][1] + share * (y - before[i][1])]);
  }

  setAgent(frame) {
    this.oldAgent = frame && this.agent;
    this.agent = frame;
    this.agentSince = performance.now();
    if (!frame) this.trail = [];
    else this.trail.push(frame.at);
    if (this.trail.length > 4000) this.trail.shift();
  }

  setGraph(graph) {
    this.graph = graph;
    this.graphPath = null;
    this.refresh();
  }

  // ---------------------------------------------------------------- drawing

  frame(now) {
    requestAnimationFrame((next) => this.frame(next));
    if (!this.world || !this.unit) return;
    const changing = this.changed || now - this.fieldSince < 200 || now - this.pathSince < 250 || now - this.agentSince < 60;
    if (!changing && now - this.drawn < 45) return; // at rest only small lights move
    this.changed = false;
    this.drawn = now;
    if (now - this.fieldSince < 200) this.below = null;
    this.below ??= this.drawBelow(now);
    const pen = this.pen;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.below, 0, 0);
    this.drawTrail(pen);
    this.drawPath(pen, now);
    this.drawMarks(pen, now);
    this.drawAgent(pen, now);
    if (this.brush) this.drawBrush(pen);
  }

  // Something below path and agent is different now.
  refresh() {
    this.below = null;
    this.changed = true;
  }

  drawBelow(now) {
    this.layer ??= new OffscreenCanvas(this.canvas.width, this.canvas.height);
    const pen = this.layer.getContext("2d");
    pen.fillStyle = this.theme.back;
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    pen.save();
    if (this.world.view.walls) this.clip(pen);
    this.drawField(pen, now);
    this.ground ??= this.drawGround();
    pen.drawImage(this.ground, 0, 0);
    pen.restore();
    if (this.show.graph && this.graph) this.drawGraph(pen);
    this.drawStrokes(pen);
    return this.layer;
  }

  drawField(pen, now) {
    const [left, right, bottom, top] = this.world.view.extent;
    const [x, y] = this.toPixel([left, top]), [x2, y2] = this.toPixel([right, bottom]);
    if (this.world.view.walls) {
      pen.fillStyle = this.theme.floor;
      pen.fillRect(x, y, x2 - x, y2 - y);
    }
    const share = still.matches ? 1 : ease((now - this.fieldSince) / 140);
    pen.imageSmoothingEnabled = true;
    pen.imageSmoothingQuality = "high";
    const strength = 0.92;
    if (share < 1 && this.oldField) {
      pen.globalAlpha = strength;
      pen.drawImage(this.oldField.canvas, x, y, x2 - x, y2 - y);
    }
    if (this.field) {
      pen.globalAlpha = strength * (this.oldField ? share : 1);
      pen.drawImage(this.field.canvas, x, y, x2 - x, y2 - y);
      pen.globalAlpha = 1;
      if (this.show.lines) {
        this.field.lines ??= this.contours(this.field);
        pen.strokeStyle = "rgba(255, 255, 255, .33)";
        pen.lineWidth = this.ratio;
        pen.stroke(this.field.lines);
      }
    }
    pen.globalAlpha = 1;
  }

  contours({ grid, most }) {
    const { width, height } = this.world.view.raster, [left, right, bottom, top] = this.world.view.extent;
    const path = new Path2D(), values = blur(grid, width, height);
    const step = nice(most / 18);
    const at = (i, j) => this.toPixel([
      left + ((i + 0.5) * (right - left)) / width, bottom + ((j + 0.5) * (top - bottom)) / height,
    ]);
    for (let j = 0; j + 1 < height; j++) {
      for (let i = 0; i + 1 < width; i++) {
        const k = j * width + i, corner = [values[k], values[k + 1], values[k + width + 1], values[k + width]];
        const low = Math.min(...corner), high = Math.max(...corner);
        if (low < 0 || high - low > 5 * step) continue; // nothing known, or a wall between
        for (let level = Math.ceil(low / step) * step; level < high; level += step) {
          const spots = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]], cut = [];
          for (let side = 0; side < 4; side++) {
            const a = corner[side], b = corner[(side + 1) % 4];
            if (a < level === b < level) continue;
            const t = (level - a) / (b - a), [p, q] = [spots[side], spots[(side + 1) % 4]];
            cut.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
          }
          for (let n = 0; n + 1 < cut.length; n += 2) {
            path.moveTo(...at(...cut[n]));
            path.lineTo(...at(...cut[n + 1]));
          }
        }
      }
    }
    return path;
  }

  drawGround() {
    const layer = new OffscreenCanvas(this.canvas.width, this.canvas.height), pen = layer.getContext("2d");
    const { extent, walls, cloud, axes } = this.world.view;
    if (this.show.data || !walls) {
      pen.fillStyle = this.theme.ink;
      pen.globalAlpha = this.show.data ? 0.5 : 0.16;
      const size = (this.show.data ? 1.3 : 1) * this.ratio;
      for (const point of cloud) {
        const [x, y] = this.toPixel(point);
        pen.fillRect(x - size / 2, y - size / 2, size, size);
      }
      pen.globalAlpha = 1;
    }
    if (walls) {
      const wide = (extent[1] - extent[0]) / walls[0].length, high = (extent[3] - extent[2]) / walls.length;
      const shape = new Path2D();
      walls.forEach((row, i) => row.forEach((wall, j) => {
        if (!wall) return;
        const [x, y] = this.toPixel([extent[0] + j * wide, extent[2] + (i + 1) * high]);
        shape.rect(x - 0.5, y - 0.5, wide * this.unit.x + 1, high * this.unit.y + 1);
      }));
      pen.shadowColor = "rgba(0, 0, 0, .55)";
      pen.shadowBlur = 14 * this.ratio;
      pen.fillStyle = this.theme.wall;
      pen.fill(shape);
      pen.shadowColor = "transparent";
      pen.fill(shape);
      pen.strokeStyle = "rgba(255, 255, 255, .13)";
      pen.lineWidth = this.ratio;
      pen.beginPath();
      walls.forEach((row, i) => row.forEach((wall, j) => {
        const [x, y] = this.toPixel([extent[0] + j * wide, extent[2] + (i + 1) * high]);
        const w = wide * this.unit.x, h = high * this.unit.y;
        if (wall && walls[i + 1]?.[j] === 0) pen.moveTo(x, y), pen.lineTo(x + w, y);
        if (wall && walls[i - 1]?.[j] === 0) pen.moveTo(x, y + h), pen.lineTo(x + w, y + h);
        if (wall && row[j - 1] === 0) pen.moveTo(x, y), pen.lineTo(x, y + h);
        if (wall && row[j + 1] === 0) pen.moveTo(x + w, y), pen.lineTo(x + w, y + h);
      }));
      pen.stroke();
    } else {
      pen.fillStyle = this.theme.soft;
      pen.font = `${12 * this.ratio}px ${this.theme.sans}`;
      pen.textAlign = "center";
      const [left, right, bottom, top] = extent, [x, y] = this.toPixel([left, bottom]), [x2, y2] = this.toPixel([right, top]);
      const below = this.canvas.height - 11 * this.ratio;
      pen.fillText(axes[0], (x + x2) / 2, below);
      for (const [value, at] of [[left, x], [right, x2]]) pen.fillText(value.toPrecision(3), at, below);
      pen.translate(18 * this.ratio, (y + y2) / 2);
      pen.rotate(-Math.PI / 2);
      pen.fillText(axes[1], 0, 0);
      for (const [value, at] of [[bottom, y], [top, y2]]) pen.fillText(value.toPrecision(3), (y + y2) / 2 - at, 0);
    }
    return layer;
  }

  drawGraph(pen) {
    if (!this.graphPath) {
      const { nodes, edges } = this.graph;
      this.nodeSpots = nodes.map((node) => this.toPixel(node));
      this.graphPath = new Path2D();
      for (let i = 0; i < edges.length; i += 2) {
        this.graphPath.moveTo(...this.nodeSpots[edges[i]]);
        this.graphPath.lineTo(...this.nodeSpots[edges[i + 1]]);
      }
    }
    pen.strokeStyle = "rgba(255, 255, 255, .2)";
    pen.lineWidth = 0.6 * this.ratio;
    pen.stroke(this.graphPath);
    const size = 1.5 * this.ratio;
    this.nodeSpots.forEach(([x, y], i) => {
      pen.fillStyle = this.off.has(i) ? this.theme.goal : "rgba(255, 255, 255, .8)";
      pen.fillRect(x - size / 2, y - size / 2, size, size);
    });
  }

  drawStrokes(pen) {
    pen.lineCap = pen.lineJoin = "round";
    for (const [extra, style] of [[3, "rgba(0, 0, 0, .35)"], [0, this.theme.drawn]]) {
      pen.strokeStyle = style;
      pen.lineWidth = 2 * this.pixelsOf(this.brushRadius) * 0.8 + extra * this.ratio;
      for (const points of this.strokes) {
        pen.beginPath();
        points.forEach((point, i) => (i ? pen.lineTo(...this.toPixel(point)) : pen.moveTo(...this.toPixel(point))));
        if (points.length === 1) pen.lineTo(...this.toPixel(points[0]));
        pen.stroke();
      }
    }
  }

  trace(pen, points) {
    const spots = points.map((point) => this.toPixel(point));
    pen.beginPath();
    pen.moveTo(...spots[0]);
    for (let i = 1; i + 1 < spots.length; i++)
      pen.quadraticCurveTo(...spots[i], (spots[i][0] + spots[i + 1][0]) / 2, (spots[i][1] + spots[i + 1][1]) / 2);
    pen.lineTo(...spots[spots.length - 1]);
  }

  drawPath(pen, now) {
    const path = this.shownPath(now);
    if (path.length < 2) return;
    pen.lineCap = pen.lineJoin = "round";
    const dashed = this.dashed;
    for (const [width, style] of [[7, "rgba(10, 12, 16, .55)"], [4, this.theme.path]]) {
      this.trace(pen, path);
      pen.setLineDash(dashed ? [9 * this.ratio, 9 * this.ratio] : []);
      pen.lineWidth = width * this.ratio;
      pen.strokeStyle = style;
      pen.stroke();
    }
    if (!still.matches && !dashed) { // small lights that run towards the goal
      pen.setLineDash([1, 26 * this.ratio]);
      pen.lineDashOffset = -now * 0.045 * this.ratio;
      pen.lineWidth = 2.6 * this.ratio;
      pen.strokeStyle = "rgba(255, 255, 255, .95)";
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.lineDashOffset = 0;
  }

  drawTrail(pen) {
    if (this.trail.length < 2) return;
    pen.lineCap = pen.lineJoin = "round";
    for (const [width, style] of [[6, "rgba(8, 12, 20, .5)"], [3.2, this.theme.trail]]) {
      pen.beginPath();
      this.trail.forEach((point, i) => (i ? pen.lineTo(...this.toPixel(point)) : pen.moveTo(...this.toPixel(point))));
      pen.lineWidth = width * this.ratio;
      pen.strokeStyle = style;
      pen.stroke();
    }
  }

  drawMarks(pen, now) {
    const size = 8 * this.ratio;
    pen.lineWidth = 2.4 * this.ratio;
    pen.strokeStyle = "#fff";
    if (this.start) {
      const [x, y] = this.toPixel(this.start);
      pen.beginPath();
      pen.arc(x, y, 0.85 * size, 0, 7);
      pen.fillStyle = this.theme.start;
      pen.fill();
      pen.stroke();
    }
    if (!this.goal) return;
    const [x, y] = this.toPixel(this.goal);
    const pulse = still.matches ? 0.5 : (now / 1400) % 1;
    pen.globalAlpha = 0.6 * (1 - pulse);
    pen.beginPath();
    pen.arc(x, y, size * (1 + 2 * pulse), 0, 7);
    pen.strokeStyle = this.theme.goal;
    pen.stroke();
    pen.globalAlpha = 1;
    pen.beginPath();
    for (let i = 0; i < 10; i++) {
      const radius = size * (i % 2 ? 0.62 : 1.4), turn = (Math.PI * i) / 5 - Math.PI / 2;
      pen.lineTo(x + radius * Math.cos(turn), y + radius * Math.sin(turn));
    }
    pen.closePath();
    pen.fillStyle = this.theme.goal;
    pen.strokeStyle = "#fff";
    pen.lineWidth = 1.8 * this.ratio;
    pen.fill();
    pen.stroke();
  }

  drawAgent(pen, now) {
    const { agent, oldAgent } = this;
    if (!agent) return;
    const share = still.matches ? 1 : Math.min(1, (now - this.agentSince) / 40);
    const blend = (now, before) => (before === undefined ? now : before + share * (now - before));
    pen.lineCap = "round";
    const parts = agent.shape.map((part, i) => part.map((value, k) => blend(value, oldAgent?.shape[i]?.[k])));
    for (const [extra, style] of [[4, "rgba(8, 12, 20, .6)"], [2, "#ffffff"], [0, this.theme.trail]]) {
      pen.strokeStyle = style;
      for (const [x1, y1, x2, y2, radius] of parts) {
        const small = parts.length === 1 ? 0.75 : 1; // a lone ball would hide its goal
        pen.lineWidth = 2 * Math.max(2.2 * this.ratio, small * radius * this.unit.x) + extra * this.ratio;
        const [ax, ay] = this.toPixel([x1, y1]), [bx, by] = this.toPixel([x2, y2]);
        pen.beginPath();
        pen.moveTo(ax, ay);
        pen.lineTo(bx + (Math.hypot(bx - ax, by - ay) < 0.1 ? 0.1 : 0), by); // a line of no length is not drawn
        pen.stroke();
      }
    }
  }

  drawBrush(pen) {
    const [x, y] = this.toPixel(this.brush);
    pen.beginPath();
    pen.arc(x, y, this.pixelsOf(this.brushRadius), 0, 7);
    pen.lineWidth = 1.5 * this.ratio;
    pen.strokeStyle = this.theme.drawn;
    pen.setLineDash([4 * this.ratio, 4 * this.ratio]);
    pen.stroke();
    pen.setLineDash([]);
  }
}

// ---------------------------------------------------------------- numbers

function grow(grid, width, height) {
  const grown = grid.slice();
  for (let k = 0; k < grid.length; k++) {
    if (grid[k] >= 0) continue;
    let sum = 0, count = 0;
    for (const [dx, dy] of [[-1, 0], [1, 0], [0, -1], [0, 1]]) {
      const x = (k % width) + dx, y = Math.floor(k / width) + dy;
      if (x < 0 || y < 0 || x >= width || y >= height || grid[y * width + x] < 0) continue;
      sum += grid[y * width + x];
      count++;
    }
    if (count) grown[k] = sum / count;
  }
  return grown;
}

function blur(grid, width, height) {
  const result = grid.slice();
  for (let y = 1; y + 1 < height; y++)
    for (let x = 1; x + 1 < width; x++) {
      const k = y * width + x;
      if (grid[k] < 0) continue;
      let sum = 0, weight = 0;
      for (const [d, w] of [[0, 4], [-1, 2], [1, 2], [-width, 2], [width, 2], [-width - 1, 1], [1 - width, 1], [width - 1, 1], [width + 1, 1]]) {
        if (grid[k + d] < 0) continue;
        sum += w * grid[k + d];
        weight += w;
      }
      result[k] = sum / weight;
    }
  return result;
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= step);
}

function resample(path, count) {
  const along = [0];
  for (let i = 1; i < path.length; i++)
    along.push(along[i - 1] + Math.hypot(path[i][0] - path[i - 1][0], path[i][1] - path[i - 1][1]));
  const total = along[along.length - 1] || 1, result = [];
  for (let n = 0, i = 0; n < count; n++) {
    const wanted = (total * n) / (count - 1);
    while (i + 2 < path.length && along[i + 1] < wanted) i++;
    const t = Math.min(1, (wanted - along[i]) / (along[i + 1] - along[i] || 1));
    result.push([path[i][0] + t * (path[i + 1][0] - path[i][0]), path[i][1] + t * (path[i + 1][1] - path[i][1])]);
  }
  return result;
}
