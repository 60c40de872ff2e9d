// The inbox's page. Everything from a mail is set as text; its HTML is a document of its own in a
// sandboxed frame. No part of this file builds markup from strings.

const POLL_EVERY = 1000;
const $ = (id) => document.getElementById(id);

const state = {
  version: null, // what the server told last, null to be told everything
  search: "",
  mails: [],
  more: false,
  limit: 100,
  number: null, // the mail that is open
  mail: null,
  view: "html",
  seenUpTo: null, // mails above it came while the page was open
  read: new Set(),
};

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function ask(path, options) {
  const response = await fetch(path, options);
  if (!response.ok) throw new Error(await response.text());
  return response.status === 204 ? null : response.json();
}

// -- the list -----------------------------------------------------------------------------------

let listing = null;

async function refresh() {
  listing?.abort();
  const mine = (listing = new AbortController());
  const query = new URLSearchParams({ limit: state.limit, search: state.search });
  if (state.version !== null) query.set("version", state.version);
  try {
    const answer = await ask(`/api/mails?${query}`, { signal: mine.signal });
    if (answer) {
      state.version = answer.version;
      state.mails = answer.mails;
      state.more = answer.more;
      showCounts(answer);
      showList(answer);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    state.version = null; // it may be another inbox when it answers again
    $("counts").textContent = "The inbox does not answer. Trying again…";
  }
}

const count = new Intl.NumberFormat().format;

function showCounts(answer) {
  const words = [`${count(answer.message_count)} ${answer.message_count === 1 ? "mail" : "mails"}`];
  if (state.search) words.push(`${count(answer.found_count)} found`);
  else if (answer.kept_count < answer.message_count) words.push(`${count(answer.kept_count)} kept`);
  $("counts").textContent = words.join(" · ");
  document.title = `Inbox (${count(answer.message_count)})`;
  const twice = answer.duplicate_id_count;
  $("warning").hidden = twice === 0;
  $("warning").textContent = `${count(twice)} Message-${twice === 1 ? "ID" : "IDs"} came more than once`;
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

function when(seconds) {
  const date = new Date(seconds * 1000);
  const format = date.toDateString() === new Date().toDateString() ? clock : day;
  return make("time", { textContent: format.format(date), dateTime: date.toISOString() });
}

function row(mail) {
  const subject = make("span", { className: "subject", textContent: mail.subject || "(no subject)", dir: "auto" });
  if (mail.times_seen > 1) {
    subject.append(make("span", { className: "times", textContent: `× ${count(mail.times_seen)}` }));
  }
  const receiver = make("span", { className: "receiver", textContent: mail.to, title: mail.to });
  const link = make("a", { href: `#${mail.number}` }, receiver, when(mail.received_at), subject);
  link.dataset.key = `${mail.number} ${mail.times_seen}`;
  const item = make("li", {}, link);
  item.dataset.number = mail.number;
  return item;
}

function showList(answer) {
  const list = $("list");
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const nav = list.parentElement;
  // What is being looked at stays where it is while new mails come in above it.
  const anchor = nav.scrollTop > 4 ? [...list.children].find((item) => item.offsetTop + item.offsetHeight > nav.scrollTop) : null;
  const offset = anchor ? anchor.offsetTop - nav.scrollTop : 0;

  const known = new Map([...list.children].map((item) => [item.firstChild.dataset.key, item]));
  const items = state.mails.map((mail) => known.get(`${mail.number} ${mail.times_seen}`) ?? row(mail));
  list.replaceChildren(...items);
  if (state.seenUpTo === null) state.seenUpTo = state.mails[0]?.number ?? 0;
  markRows();

  if (anchor) {
    const moved = list.querySelector(`[data-number="${anchor.dataset.number}"]`);
    if (moved) nav.scrollTop = moved.offsetTop - offset;
  }
  if (focused) list.querySelector(`a[href="${focused}"]`)?.focus({ preventScroll: true });
  $("more").hidden = !state.more;
  showNone(answer);
}

function showNone(answer) {
  const none = $("none");
  none.hidden = state.mails.length > 0;
  $("nothing").firstChild.hidden = !none.hidden;
  if (state.search) {
    none.replaceChildren(make("strong", { textContent: "Nothing found" }), `No recipient or subject has “${state.search}”.`);
  } else {
    none.replaceChildren(make("strong", { textContent: "No mail" }), "What is sent to ", make("code", { textContent: answer.smtp_url }), " appears here.");
  }
}

function markRows() {
  for (const item of $("list").children) {
    const number = Number(item.dataset.number);
    const link = item.firstChild;
    if (number === state.number) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.classList.toggle("unread", number > state.seenUpTo && !state.read.has(number));
  }
}

// -- one mail -----------------------------------------------------------------------------------

async function open(number) {
  state.number = number;
  state.read.add(number);
  markRows();
  $("list").querySelector(`[data-number="${number}"]`)?.scrollIntoView({ block: "nearest" });
  if (number === null) return showMail(null);
  try {
    const mail = await ask(`/api/mails/${number}`);
    if (state.number === number) showMail(mail);
  } catch (error) {
    if (state.number === number) showMail({ number, gone: error.message });
  }
}

function showMail(mail) {
  state.mail = mail;
  document.body.classList.toggle("reading", mail !== null);
  $("mail").hidden = mail === null;
  $("nothing").hidden = mail !== null;
  if (mail === null) return $("view").replaceChildren();
  $("subject").textContent = mail.gone ? "Not here any more" : mail.subject || "(no subject)";
  $("from").textContent = mail.from ?? "";
  $("to").textContent = mail.to ?? "";
  $("received").textContent = mail.received_at ? `${full.format(new Date(mail.received_at * 1000))} · ${size(mail.size)}` : "";
  $("twice").hidden = !(mail.times_seen > 1);
  $("twice").textContent = `Mails with this Message-ID have come ${count(mail.times_seen)} times.`;
  $("download").href = `/mails/${mail.number}/source?download`;
  showView();
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function availableView() {
  const { mail, view } = state;
  if (view === "html" && !mail.has_html) return "text";
  return view;
}

async function showView() {
  const { mail } = state;
  const view = $("view");
  const chosen = mail.gone ? null : availableView();
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const selected = tab.dataset.view === chosen;
    tab.disabled = Boolean(mail.gone) || (tab.dataset.view === "html" && !mail.has_html);
    tab.setAttribute("aria-selected", selected);
    tab.tabIndex = selected ? 0 : -1;
    if (selected) view.setAttribute("aria-labelledby", tab.id);
  }
  $("narrow").hidden = chosen !== "html";
  view.classList.toggle("narrow", chosen === "html" && $("narrow").getAttribute("aria-pressed") === "true");
  view.scrollTop = 0;
  if (mail.gone) view.replaceChildren(make("p", { className: "note", textContent: mail.gone }));
  else if (chosen === "html") view.replaceChildren(frame(mail));
  else if (chosen === "text") view.replaceChildren(plain(mail));
  else if (chosen === "headers") view.replaceChildren(headers(mail));
  else {
    const response = await fetch(`/mails/${mail.number}/source`);
    const text = await response.text();
    if (state.mail === mail && availableView() === "source") view.replaceChildren(make("pre", { textContent: text }));
  }
}

function frame(mail) {
  const element = make("iframe", { title: "The mail's HTML" });
  element.setAttribute("sandbox", "allow-popups allow-popups-to-escape-sandbox");
  element.src = `/mails/${mail.number}/html`;
  return element;
}

function plain(mail) {
  if (mail.text === null) return make("p", { className: "note", textContent: "This mail has no plain text." });
  return make("pre", { textContent: mail.text, dir: "auto" });
}

function headers(mail) {
  const rows = [["Envelope from", mail.envelope_from || "<>"], ["Envelope to", mail.to], ...mail.headers];
  for (const part of mail.attachments) rows.push(["Attachment", `${part.name} (${part.type}, ${size(part.size)})`]);
  const cells = rows.map(([name, value]) => make("tr", {}, make("th", { textContent: name, scope: "row" }), make("td", { textContent: value })));
  return make("table", {}, make("tbody", {}, ...cells));
}

function choose(view) {
  state.view = view;
  if (state.mail) showView();
}

// -- what people do -----------------------------------------------------------------------------

function step(by) {
  const numbers = state.mails.map((mail) => mail.number);
  const at = numbers.indexOf(state.number);
  // With none open, or one that isn't listed, begin at the newest.
  const next = at < 0 ? 0 : Math.min(Math.max(at + by, 0), numbers.length - 1);
  if (numbers.length) location.hash = numbers[next];
  if (at + by >= numbers.length - 1 && state.more) showMore();
}

function showMore() {
  state.limit = Math.min(state.limit + 100, 1000);
  state.version = null;
  refresh();
}

function search(words) {
  state.search = words;
  state.limit = 100;
  state.version = null;
  refresh();
}

async function clear() {
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes") return;
  await ask("/api/clear", { method: "POST" });
  location.hash = "";
  state.version = null;
  refresh();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target === $("search");
  if (event.key === "Escape") {
    if (typing || state.search) {
      $("search").value = "";
      $("search").blur();
      search("");
    } else location.hash = "";
    return;
  }
  if (typing) {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      $("search").blur();
      if (state.mails.length) location.hash = state.mails[0].number;
    }
    return;
  }
  const inList = $("list").contains(event.target) || event.target === document.body;
  const actions = {
    j: () => step(1),
    k: () => step(-1),
    p: () => $("narrow").click(),
    "/": () => $("search").select(),
    "?": () => $("keys").showModal(),
    1: () => choose("html"),
    2: () => choose("text"),
    3: () => choose("headers"),
    4: () => choose("source"),
  };
  if (inList) Object.assign(actions, { ArrowDown: () => step(1), ArrowUp: () => step(-1) });
  if (event.target.role === "tab") Object.assign(actions, { ArrowRight: () => turn(1), ArrowLeft: () => turn(-1) });
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
}

function turn(by) {
  const tabs = [...document.querySelectorAll("[role=tab]:not(:disabled)")];
  const at = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  const tab = tabs[(at + by + tabs.length) % tabs.length];
  choose(tab.dataset.view);
  tab.focus();
}

function arrive() {
  const number = /^#[0-9]+$/.test(location.hash) ? Number(location.hash.slice(1)) : null;
  open(number);
}

let typed = null;
$("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => search($("search").value.trim()), 120);
});
$("clear").addEventListener("click", clear);
$("help").addEventListener("click", () => $("keys").showModal());
$("more").addEventListener("click", showMore);
$("back").addEventListener("click", () => (location.hash = ""));
$("narrow").addEventListener("click", () => {
  const on = $("narrow").getAttribute("aria-pressed") !== "true";
  $("narrow").setAttribute("aria-pressed", on);
  if (state.mail) showView();
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => choose(tab.dataset.view));
}
addEventListener("keydown", pressed);
addEventListener("hashchange", arrive);
document.addEventListener("visibilitychange", () => document.hidden || refresh());

async function poll() {
  if (!document.hidden) await refresh();
  setTimeout(poll, POLL_EVERY);
}

arrive();
poll();
