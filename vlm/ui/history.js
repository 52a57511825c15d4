// Keeps the visitor's chats in this browser: takes what the server says of the chat that is
// shown, bounds it, lists it, and lets other tabs know. What is stored may be anyone's: it is
// only ever shown as text, and the server checks each chat that is opened.
window.keptChats = (() => {
  const LONGEST = 3_000_000; // bytes of JSON; stored it is a third more, and browsers stop at 5 MB
  const MOST = 200;
  const WITH_TEXT = 20; // so many of the newest chats lose their pictures before one of them goes
  const TAB = "vlm-chats-tab";

  let state = { version: 1, owner: null, chats: [] };
  let told = { number: 0, words: {} };
  let isBegun = false;
  const missed = [];
  let list = null;
  let chosen = null;
  let trigger = () => {};
  let heard = () => {};
  const channel = window.BroadcastChannel ? new BroadcastChannel("vlm-chats") : null;

  // What this tab shows, also after a reload; another tab has its own.
  const remember = (tab) => { try { sessionStorage.setItem(TAB, JSON.stringify(tab)); } catch {} };
  const remembered = () => {
    try { return JSON.parse(sessionStorage.getItem(TAB)); } catch { return null; }
  };

  const isChat = (chat) => typeof chat?.id === "string" && Number.isFinite(chat.time_s)
    && Array.isArray(chat.messages) && chat.pictures instanceof Object;
  const read = (kept) => {
    const copy = kept ? JSON.parse(JSON.stringify(kept)) : {};
    const isOurs = copy.version === 1 && Array.isArray(copy.chats);
    return {
      version: 1,
      owner: typeof copy.owner === "string" ? copy.owner : null,
      chats: isOurs ? copy.chats.filter(isChat) : [],
      isBroken: Boolean(kept) && (!isOurs || !copy.chats.every(isChat)),
    };
  };

  const sizeOf = (chat) => new Blob([JSON.stringify(chat)]).size + 1;
  // The oldest chats fall out first, then the pictures of older ones; the one shown comes last.
  const bounded = (chats, shown, longest = LONGEST) => {
    const kept = [...chats].sort((a, b) => (b.id === shown) - (a.id === shown) || b.time_s - a.time_s)
      .slice(0, MOST).map((chat) => ({ chat, size: sizeOf(chat) }));
    let size = 100 + kept.reduce((sum, one) => sum + one.size, 0);
    const fallOut = (fewest) => {
      while (size > longest && kept.length > fewest) size -= kept.pop().size;
    };
    fallOut(WITH_TEXT);
    for (let index = kept.length - 1; index >= 0 && size > longest; index--) {
      const one = kept[index];
      const pictures = { ...one.chat.pictures };
      for (const key of Object.keys(pictures)) {
        if (size <= longest) break;
        const gone = pictures[key].length + key.length + 6;
        delete pictures[key];
        [size, one.size] = [size - gone, one.size - gone];
      }
      one.chat = { ...one.chat, pictures };
    }
    fallOut(0);
    return kept.map((one) => one.chat).sort((a, b) => b.time_s - a.time_s);
  };

  const said = (chat) => JSON.stringify(chat.messages);
  const merged = (chats, { put = [], drop = [], isImport = false }, shown, longest) => {
    let all = chats.filter((chat) => !drop.includes(chat.id));
    for (const chat of put) {
      if (isImport && all.some((other) => said(other) === said(chat))) continue;
      const old = all.find((other) => other.id === chat.id);
      const known = { ...old?.pictures, ...chat.pictures };
      const keys = chat.messages.flatMap((message) => message.pictures ?? []);
      const pictures = Object.fromEntries(
        keys.filter((key) => key in known).map((key) => [key, known[key]]));
      all = [...all.filter((other) => other !== old), { ...chat, pictures }];
    }
    return bounded(all, shown, longest);
  };

  const change = (change, isOwn = true) => {
    if (!change.put?.length && !change.drop?.length) return;
    state = { ...state, chats: merged(state.chats, change, told.present) };
    if (isOwn) channel?.postMessage({ change, owner: state.owner });
    trigger("input");
  };

  if (channel) channel.onmessage = ({ data }) => {
    if (data.isHere) heard();
    if (data.asks && isBegun) channel.postMessage({ isHere: true });
    if (data.change) { missed.push(data); if (told.number) catchUp(); }
  };
  // What other tabs said while this one was still opening is not in what it has read.
  const catchUp = () => {
    for (const data of missed.splice(0)) if (data.owner === state.owner) change(data.change, false);
    show();
  };
  const othersAreOpen = () => new Promise((resolve) => {
    heard = () => resolve(true);
    channel?.postMessage({ asks: true });
    setTimeout(() => resolve(false), channel ? 200 : 0);
  });

  // What the server is told when the page opens: the chat to show again, if there is one.
  const begin = async (kept) => {
    const { isBroken, ...found } = read(kept);
    state = found;
    const tab = remembered();
    const id = tab?.present ?? (await othersAreOpen() ? null : state.chats[0]?.id);
    isBegun = true;
    return {
      chat: state.chats.find((chat) => chat.id === id) ?? null,
      owner: state.owner,
      token: String(tab?.token ?? ""),
      is_reload: performance.getEntriesByType("navigation")[0]?.type === "reload",
      is_broken: isBroken,
    };
  };

  // What the server says: the chat that is shown now, and what to keep of it.
  const take = (json) => {
    const next = JSON.parse(json);
    if (next.number < told.number) return; // overtaken on its way
    told = next;
    const isForeign = state.owner !== null && state.owner !== told.owner;
    if (isForeign) state.chats = [];
    if (state.owner !== told.owner) {
      state = { ...state, owner: told.owner };
      trigger("input");
    }
    remember({ present: told.present, token: told.token });
    change(told);
    catchUp();
  };

  const button = (className, press, ...content) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = className;
    made.append(...content);
    made.addEventListener("click", press);
    return made;
  };
  const element = (tag, ...content) => {
    const made = document.createElement(tag);
    made.append(...content);
    return made;
  };
  // Deleting takes two presses: inside a frame of another site a browser shows no dialogs.
  const deleting = (text, label, sure, act) => {
    const made = button("drop", () => {
      if (made.classList.contains("sure")) { act(); show(); return; }
      made.classList.add("sure");
      made.replaceChildren(sure);
      setTimeout(() => { made.classList.remove("sure"); made.replaceChildren(text); }, 5000);
    }, text);
    made.ariaLabel = made.title = label;
    return made;
  };
  const when = (time_s) => new Date(1000 * time_s).toLocaleString(
    navigator.languages.find((one) => one.startsWith(told.language)) ?? told.language,
    { dateStyle: "medium", timeStyle: "short" });
  const row = (chat) => {
    const { words } = told;
    const title = String(chat.title || words.no_title);
    const open = button("open", () => { chosen = chat.id; trigger("select"); },
      element("span", title), element("small", when(chat.time_s)));
    return element("li", open, deleting("✕", `${words.drop_chat}: ${title}`, words.sure_drop,
      () => change({ drop: [chat.id] })));
  };
  const earlier = () => state.chats.filter((chat) => chat.id !== told.present);
  const show = () => {
    const { words, present } = told;
    const clear = document.getElementById("clear");
    if (clear) clear.title = words.new_chat_hint ?? "";
    if (!list || !present) return;
    const rows = earlier().map(row);
    list.replaceChildren(element("p", words.history_hint), ...(rows.length
      ? [element("ul", ...rows), deleting(words.drop_all, words.drop_all, words.sure_drop_all,
        () => change({ drop: earlier().map((chat) => chat.id) }))]
      : [element("p", words.no_earlier)]));
  };

  const save = (url, name) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  };
  const day = () => new Date().toISOString().slice(0, 10);

  return {
    begin, take, merged,
    connect: (triggerEvent) => { trigger = triggerEvent; },
    listIn: (element) => { list = element; show(); },
    stored: () => ({ ...state }),
    picked: () => ({ chat: state.chats.find((chat) => chat.id === chosen) ?? null }),
    all: () => ({ chats: state.chats }),
    saveJson: () => {
      const text = JSON.stringify({ format: "vlm-chats", version: 1, chats: state.chats });
      const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      save(url, `chats-${day()}.json`);
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    },
    saveZip: (file) => { if (file?.url) save(file.url, `chats-${day()}.zip`); },
  };
})();
