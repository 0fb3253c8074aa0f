// Moving about in a graph: the wheel and two buttons zoom, dragging pans, arrow keys go from box to box.

let zoom = null; // null: fitted to the width

/** Let a canvas be dragged, and zoom where the pointer is. With Shift the wheel scrolls. */
function setUpMoving(canvas) {
  let held = null;
  canvas.addEventListener("wheel", (event) => {
    const drawn = document.getElementById("picture");
    if (event.shiftKey || !drawn) return;
    event.preventDefault();
    const before = drawn.getBoundingClientRect();
    const [x, y] = [(event.clientX - before.left) / before.width, (event.clientY - before.top) / before.height];
    zoomBy(Math.exp(-event.deltaY / 400));
    const after = drawn.getBoundingClientRect();
    canvas.scrollLeft += after.left + x * after.width - event.clientX;
    canvas.scrollTop += after.top + y * after.height - event.clientY;
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) held = { x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop, far: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = [event.clientX - held.x, event.clientY - held.y];
    held.far ||= Math.hypot(x, y) > 4;
    if (!held.far) return;
    canvas.classList.add("held");
    canvas.scrollLeft = held.left - x;
    canvas.scrollTop = held.top - y;
  });
  const release = () => {
    // What was dragged is no click on the box below: that comes right after.
    setTimeout(() => canvas.classList.remove("held"));
    held = null;
  };
  for (const name of ["pointerup", "pointerleave", "pointercancel"]) canvas.addEventListener(name, release);
}

function zoomBy(factor) {
  const drawn = document.getElementById("picture");
  if (drawn) zoomTo((drawn.getBoundingClientRect().width / Number(drawn.dataset.width)) * factor);
}

/** Show the picture at a scale; null: as wide as there is room, but never larger than life, nor too small to read. */
function zoomTo(scale) {
  zoom = scale;
  const drawn = document.getElementById("picture");
  if (!drawn) return;
  const room = document.getElementById("canvas").clientWidth - 4;
  const width = Number(drawn.dataset.width);
  const fitted = Math.min(1.15, Math.max(room / width, 0.45));
  drawn.style.width = `${width * Math.min(Math.max(scale ?? fitted, 0.05), 4)}px`;
}

/** Arrow keys: down to what reads a box, up to what it reads, left and right to its neighbours; Home and End. */
function setUpKeys(drawn, layout) {
  const places = new Map(layout.boxes.map((box) => [box.id, box]));
  const inOrder = [...layout.boxes].sort((a, b) => a.y - b.y || a.x - b.x);
  const nearest = (from, found) => found.filter(Boolean).sort((a, b) => distance(from, a) - distance(from, b))[0];
  const next = {
    ArrowDown: (box) => nearest(box, layout.links.filter((link) => link.from === box.id).map((link) => places.get(link.to))),
    ArrowUp: (box) => nearest(box, layout.links.filter((link) => link.to === box.id).map((link) => places.get(link.from))),
    ArrowRight: (box) => inOrder[inOrder.indexOf(box) + 1],
    ArrowLeft: (box) => inOrder[inOrder.indexOf(box) - 1],
    Home: () => inOrder[0],
    End: () => inOrder.at(-1),
  };
  drawn.addEventListener("keydown", (event) => {
    const now = event.target.closest?.("[data-node]");
    const box = now && places.get(now.dataset.node);
    if (!box || !(event.key in next)) return;
    event.preventDefault();
    const to = next[event.key](box);
    if (to) focusBox(drawn, to.id);
  });
}

function distance(one, other) {
  return Math.abs(one.x - other.x) + Math.abs(one.y - other.y);
}

/** One box of the picture can be reached by Tab: the one that had the focus last. */
function focusBox(drawn, id) {
  const box = drawn.querySelector(`[data-node="${CSS.escape(id)}"]`);
  for (const each of drawn.querySelectorAll('.box[tabindex="0"]')) each.setAttribute("tabindex", "-1");
  box.setAttribute("tabindex", "0");
  box.focus();
}
