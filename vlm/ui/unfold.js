// What is unfolded beside the chat comes into sight: it may begin at the lower edge of the screen.
document.addEventListener("click", (event) => {
  const fold = event.target.closest?.("#side .label-wrap");
  if (!fold) return;
  setTimeout(() => {
    if (fold.classList.contains("open"))
      fold.closest(".block")?.scrollIntoView({ block: "start", behavior: "auto" });
  }, 60);
});
