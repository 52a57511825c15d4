// A picture dropped anywhere on the page goes to the input; the browser would leave the page for it.
const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => { if (holdsFiles(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!holdsFiles(event) || event.defaultPrevented) return;
  event.preventDefault();
  const input = document.querySelector("#box textarea");
  if (!input || event.target.closest?.("#box, input[type=file], .upload-container")) return;
  const items = { dataTransfer: event.dataTransfer, bubbles: true, cancelable: true };
  input.dispatchEvent(new DragEvent("drop", items));
});
