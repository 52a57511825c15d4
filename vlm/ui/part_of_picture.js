// Choose a part of the shown picture: drag it, or move and resize it with the arrow keys.
const STEP = 0.02;
let start = null;   // where a drag began
let part = null;    // left, top, right, bottom: 0..1 of the picture
const find = (name) => element.querySelector(name);
const bound = (value) => Math.min(1, Math.max(0, value));

const show = () => {
    const cut = find(".cut"), place = find(".place");
    if (!cut) return;
    find(".take").disabled = !part;
    cut.style.display = part ? "block" : "none";
    if (!part) { place.textContent = ""; return; }
    const share = (value) => `${100 * value}%`;
    const [width, height] = [part.right - part.left, part.bottom - part.top];
    Object.assign(cut.style, {
        left: share(part.left), top: share(part.top), width: share(width), height: share(height),
    });
    const told = {left: part.left, top: part.top, width, height};
    place.textContent = place.dataset.words.replace(
        /\{(\w+)\}/g, (_, name) => Math.round(100 * told[name]));
};
const take = () => {
    if (!part) return;
    const taken = part;
    part = null;
    show();
    trigger("select", taken);
};
const leave = () => {
    trigger("clear");
    document.querySelector("#part")?.focus();
};

const place = (event) => {
    const stage = find(".stage").getBoundingClientRect();
    return [bound((event.clientX - stage.left) / stage.width),
            bound((event.clientY - stage.top) / stage.height)];
};
const drag = (event) => {
    const end = place(event);
    const [left, right] = [start[0], end[0]].sort((a, b) => a - b);
    const [top, bottom] = [start[1], end[1]].sort((a, b) => a - b);
    part = {left, top, right, bottom};
    show();
};
element.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".stage") || event.button) return;
    event.preventDefault();
    find(".stage").focus();
    element.setPointerCapture(event.pointerId);
    start = place(event);
});
element.addEventListener("pointermove", (event) => { if (start) drag(event); });
element.addEventListener("pointerup", (event) => {
    if (!start) return;
    drag(event);
    start = null;
    take();
});
element.addEventListener("pointercancel", () => { start = part = null; show(); });
element.addEventListener("click", (event) => {
    if (event.target.closest(".leave") || event.target.matches(".cutting")) leave();
    else if (event.target.closest(".take")) take();
});

// The arrows move the part; with Shift they move its lower right corner.
const move = (x, y, isResize) => {
    part ??= {left: 0.25, top: 0.25, right: 0.75, bottom: 0.75};
    if (isResize) {
        part.right = Math.max(part.left + STEP, bound(part.right + x));
        part.bottom = Math.max(part.top + STEP, bound(part.bottom + y));
    } else {
        x = Math.min(1 - part.right, Math.max(-part.left, x));
        y = Math.min(1 - part.bottom, Math.max(-part.top, y));
        part = {left: part.left + x, top: part.top + y,
                right: part.right + x, bottom: part.bottom + y};
    }
    show();
};
const ARROWS = {ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0],
                ArrowUp: [0, -STEP], ArrowDown: [0, STEP]};
element.addEventListener("keydown", (event) => {
    const arrow = ARROWS[event.key];
    if (event.key === "Escape") leave();
    else if (arrow) move(...arrow, event.shiftKey);
    else if (event.key === "Enter" && !event.target.closest("button")) take();
    else if (event.key === "Tab") stay(event);
    else return;
    if (event.key !== "Tab") event.preventDefault();
});
// Tab goes round within the view, which covers the page.
const stay = (event) => {
    const stops = [...element.querySelectorAll(".stage, button:not(:disabled)")];
    const last = event.shiftKey ? stops[0] : stops.at(-1);
    if (document.activeElement !== last) return;
    event.preventDefault();
    stops.at(event.shiftKey ? -1 : 0).focus();
};
const begin = () => { part = null; show(); find(".stage")?.focus(); };
begin();
watch("value", begin);
