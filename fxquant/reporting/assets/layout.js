// Where the boxes of a graph stand: modules, units or nodes as boxes, and d3-dag for the places, in a worker where they are many.

const BOX = { width: 196, height: 40 };
const MOST_UNITS = 400; // more units than that are shown by module at first
const MOST_AT_ONCE = 150; // more boxes than that are placed in a worker, so that the page answers meanwhile

/** What a drawing is shown as: as the address says, or what suits its size. */
function boxesOf(drawing, boxes) {
  if (boxes !== "auto") return boxes;
  const counted = drawing.nodes.filter((node) => !node.bookkeeping);
  drawing.units ??= new Set(counted.map((node) => node.unit || node.name)).size;
  return drawing.units > MOST_UNITS ? "modules" : "units";
}

/** Boxes and links of a drawing, as a promise; computed once for each way to draw it. */
function layoutOf(drawing, boxes, open, bookkeeping) {
  drawing.layouts ??= {};
  const key = `${boxes} ${bookkeeping} ${open}`;
  drawing.layouts[key] ??= computeLayout(bookkeeping === "shown" ? drawing : withoutBookkeeping(drawing), boxes, open);
  return drawing.layouts[key];
}

/** The drawing without nodes that only serve others: who reads an item of a tuple reads the tuple, and sizes are no links. */
function withoutBookkeeping(drawing) {
  const index = indexOf(drawing);
  const sources = (name) => {
    const { bookkeeping, inputs } = index.get(name);
    if (bookkeeping === "item") return inputs.flatMap(sources);
    return bookkeeping ? [] : [name];
  };
  const nodes = drawing.nodes.filter((node) => !node.bookkeeping);
  return { nodes: nodes.map((node) => ({ ...node, inputs: [...new Set(node.inputs.flatMap(sources))] })) };
}

async function computeLayout(drawing, boxes, open) {
  let groups = groupsOf(drawing, boxes === "modules" ? modulesOf(drawing, open) : unitsOf(drawing, boxes));
  if (boxes === "modules" && hasCycle(groups)) groups = groupsOf(drawing, unitsOf(drawing, "units"));
  const used = new Set(groups.flatMap((group) => [...group.parents]));
  const kept = groups.filter((group) => group.parents.size || used.has(group.id));
  if (!kept.length) return { boxes: [], links: [], width: BOX.width, height: BOX.height };
  const graph = kept.map((group) => ({ id: group.id, parentIds: [...group.parents] }));
  const places = kept.length > MOST_AT_ONCE ? await placedElsewhere(graph) : placed(graph, BOX);
  const byId = new Map(kept.map((group) => [group.id, group]));
  return { ...places, boxes: places.boxes.map(({ id, x, y }) => ({ ...boxOf(byId.get(id)), x, y })) };
}

/** Node -> the box that holds it. */
function unitsOf(drawing, boxes) {
  return new Map(drawing.nodes.map((node) => [node.name, boxes === "units" && node.unit ? node.unit : node.name]));
}

/**
 * Node -> the box that holds it, where modules are boxes: nodes that follow one another in the graph and lie in the same
 * module, so that no box reads what comes after it. Modules that are open show what is in them.
 */
function modulesOf(drawing, open) {
  const opened = new Set(open ? open.split("|") : []);
  const holder = new Map();
  const times = new Map();
  let last = "";
  let box = "";
  for (const node of drawing.nodes) {
    const module = closedModule(node.module, opened);
    if (!module) {
      last = "";
      holder.set(node.name, node.unit || node.name);
      continue;
    }
    if (module !== last) {
      times.set(module, (times.get(module) ?? 0) + 1);
      box = `module ${module}${times.get(module) > 1 ? ` (${times.get(module)})` : ""}`;
      last = module;
    }
    holder.set(node.name, box);
  }
  return holder;
}

/** The outermost module around a path that is not open; empty where all are, or where there is none. */
function closedModule(path, opened) {
  const parts = path ? path.split(".") : [];
  for (let count = 1; count <= parts.length; count++) {
    const module = parts.slice(0, count).join(".");
    if (!opened.has(module)) return module;
  }
  return "";
}

function groupsOf(drawing, holder) {
  const groups = new Map();
  for (const node of drawing.nodes) {
    const key = holder.get(node.name);
    const group = groups.get(key) ?? { id: key, nodes: [], parents: new Set() };
    group.nodes.push(node);
    for (const input of node.inputs) if (holder.get(input) !== key) group.parents.add(holder.get(input));
    groups.set(key, group);
  }
  return [...groups.values()];
}

/** Whether boxes read one another: a unit may reach over the border of a module. */
function hasCycle(groups) {
  const waiting = new Map(groups.map((group) => [group.id, group.parents.size]));
  const readers = new Map(groups.map((group) => [group.id, []]));
  for (const group of groups) for (const parent of group.parents) readers.get(parent).push(group.id);
  const ready = groups.filter((group) => !group.parents.size).map((group) => group.id);
  for (let place = 0; place < ready.length; place++) {
    for (const id of readers.get(ready[place])) {
      waiting.set(id, waiting.get(id) - 1);
      if (!waiting.get(id)) ready.push(id);
    }
  }
  return ready.length < groups.length;
}

/** The places of boxes and the points of links. Of d3-dag's methods the ones that take time in proportion to the graph. */
function placed(groups, box) {
  const graph = d3.graphStratify()(groups);
  const { width, height } = d3
    .sugiyama()
    .layering(d3.layeringLongestPath())
    .decross(d3.decrossTwoLayer())
    .coord(d3.coordGreedy())
    .nodeSize([box.width, box.height])
    .gap([24, 26])
    .tweaks([d3.tweakShape([box.width, box.height], d3.shapeRect)])(graph);
  const boxes = [...graph.nodes()].map((node) => ({ id: node.data.id, x: node.x, y: node.y }));
  const links = [...graph.links()].map((link) => ({
    from: link.source.data.id,
    to: link.target.data.id,
    points: link.points,
  }));
  return { boxes, links, width, height };
}

/** The same in a worker; in the page where a browser starts none for a file. */
function placedElsewhere(groups) {
  return new Promise((resolve) => {
    const here = () => resolve(placed(groups, BOX));
    try {
      const library = document.getElementById("vendor/d3-dag.iife.min.js").textContent;
      const answer = `onmessage = (event) => postMessage(placed(event.data, ${JSON.stringify(BOX)}));`;
      const source = new Blob([library, "\n", placed.toString(), "\n", answer], { type: "text/javascript" });
      const worker = new Worker(URL.createObjectURL(source));
      worker.onmessage = (event) => {
        worker.terminate();
        resolve(event.data);
      };
      worker.onerror = (event) => {
        event.preventDefault();
        here();
      };
      worker.postMessage(groups);
    } catch {
      here();
    }
  });
}

/** What a box says. */
function boxOf(group) {
  const first = group.nodes[0];
  if (group.id.startsWith("module ")) return boxOfModule(group);
  const root = group.nodes.find((node) => node.name === group.id) ?? first;
  const unit = DATA.units[root.unit];
  const whole = unit && group.nodes.length > 1;
  return {
    id: group.id,
    names: group.nodes.map((node) => node.name),
    title: (whole ? first.module : root.module) || root.name,
    subtitle: whole ? unit.pattern : root.op,
    fate: root.fate,
    unit: root.unit || root.name,
    units: [root.unit || root.name],
    value: root.value,
  };
}

/** A module is float where anything in it is at a cost, else what most of its products are. */
function boxOfModule(group) {
  const nodes = group.nodes;
  const fates = nodes.map((node) => node.fate);
  const most = nodes.reduce((one, other) => (other.macs > one.macs ? other : one));
  const fate = fates.includes("float") ? "float" : fates.includes("int8") ? "int8" : most.fate;
  return {
    id: group.id,
    module: group.id.slice("module ".length).replace(/ \(\d+\)$/, ""),
    names: nodes.map((node) => node.name),
    title: group.id.slice("module ".length),
    subtitle: nodes.length === 1 ? nodes[0].op : `${nodes.length} nodes`,
    fate,
    unit: nodes.at(-1).unit || nodes.at(-1).name,
    units: [...new Set(nodes.map((node) => node.unit || node.name))],
    value: nodes.at(-1).value,
  };
}

/** A path through points that leaves and arrives upright. */
function pathThrough(points) {
  let path = `M${points[0][0]},${points[0][1]}`;
  for (let k = 1; k < points.length; k++) {
    const [[x, y], [nextX, nextY]] = [points[k - 1], points[k]];
    const middle = (y + nextY) / 2;
    path += `C${x},${middle} ${nextX},${middle} ${nextX},${nextY}`;
  }
  return path;
}
