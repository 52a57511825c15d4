// Gives the chat's own copy and edit buttons the text of a message as it was written.
const written = () => JSON.parse(props.value || '{"rows": [], "all": ""}');
const forget = () => { toCopy = null; };
let toCopy = null;

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("#chat button");
  const panel = button?.closest(".message-buttons");
  if (panel) {
    const row = panel.previousElementSibling;
    const index = [...document.querySelectorAll("#chat .message-row")].indexOf(row);
    const message = written().rows[index];
    // Beside a question stand copy and edit; its own editor would show the escapes.
    const isEdit = row?.classList.contains("user-row") && panel.querySelector("button") !== button;
    if (isEdit) {
      event.stopPropagation();
      event.preventDefault();
      if (message) trigger("edit", { turn: message.turn });
      return;
    }
    toCopy = message?.text || row?.innerText || null;
  } else if (button?.closest(".icon-button-wrapper") && !button.closest(".message-row")) {
    toCopy = written().all || null;
  }
  setTimeout(forget);
}, true);

// Where the page is served without TLS there is no clipboard object, only the copy event.
const clipboard = navigator.clipboard;
if (clipboard) {
  const write = clipboard.writeText.bind(clipboard);
  clipboard.writeText = (text) => write(toCopy ?? text);
}
document.addEventListener("copy", (event) => {
  if (toCopy === null) return;
  event.clipboardData.setData("text/plain", toCopy);
  event.preventDefault();
});
