// The panel ticks every 2 s, and at once when its tab comes back into sight; hidden, it costs nothing.
const look = () => { if (!document.hidden) trigger("tick"); };
setInterval(look, 2000);
document.addEventListener("visibilitychange", look);
