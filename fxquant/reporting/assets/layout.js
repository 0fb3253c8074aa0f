// Where the boxes of a graph stand: units (or nodes) as boxes, d3-dag for the places.

const BOX = { width: 196, height: 40 };

/** Boxes and links of a drawing; computed once for each way to draw it. */
function layoutOf(drawing, boxes) {
  drawing.layouts ??= {};
  drawing.layouts[boxes] ??= computeLayout(drawing, boxes);
  return drawing.layouts[boxes];
}

function computeLayout(drawing, boxes) {
  const holder = new Map(); // node -> the box that holds it
  for (const node of drawing.nodes) holder.set(node.name, boxes === "units" && node.unit ? node.unit : node.name);
  const groups = new Map();
  for (const node of drawing.nodes) {
    const key = holder.get(node.name);
    const group = groups.get(key) ?? { id: key, nodes: [], parents: new Set() };
    group.nodes.push(node);
    for (const input of node.inputs) if (holder.get(input) !== key) group.parents.add(holder.get(input));
    groups.set(key, group);
  }
  const used = new Set([...groups.values()].flatMap((group) => [...group.parents]));
  const kept = [...groups.values()].filter((group) => group.parents.size || used.has(group.id));
  if (!kept.length) return { boxes: [], links: [], width: BOX.width, height: BOX.height };
  const graph = d3.graphStratify()(kept.map((group) => ({ id: group.id, parentIds: [...group.parents], group })));
  // Of d3-dag's methods the ones that take time in proportion to the graph; the others solve programs.
  const { width, height } = d3
    .sugiyama()
    .layering(d3.layeringLongestPath())
    .decross(d3.decrossTwoLayer())
    .coord(d3.coordGreedy())
    .nodeSize([BOX.width, BOX.height])
    .gap([24, 26])
    .tweaks([d3.tweakShape([BOX.width, BOX.height], d3.shapeRect)])(graph);
  const placed = [...graph.nodes()].map((node) => ({ ...boxOf(node.data.group), x: node.x, y: node.y }));
  const links = [...graph.links()].map((link) => ({
    from: link.source.data.id,
    to: link.target.data.id,
    points: link.points,
  }));
  return { boxes: placed, links, width, height };
}

/** What a box says. */
function boxOf(group) {
  const root = group.nodes.find((node) => node.name === group.id) ?? group.nodes[0];
  const first = group.nodes[0];
  const unit = DATA.units[root.unit];
  const whole = unit && group.nodes.length > 1;
  return {
    id: group.id,
    names: group.nodes.map((node) => node.name),
    title: (whole ? first.module : root.module) || root.name,
    subtitle: whole ? unit.pattern : root.op,
    fate: root.fate,
    unit: root.unit || root.name,
    value: root.value,
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
