// The language that a person switched to is kept in this browser; a browser that keeps nothing may refuse.
const rememberedLanguage = {
  read() {
    try { return localStorage.getItem("vlm-language") ?? ""; } catch { return ""; }
  },
  write(language) {
    try { localStorage.setItem("vlm-language", language); } catch {}
  },
  show(language) {
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  },
};
