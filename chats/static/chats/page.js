// A user's chats, live. The token comes in the address's fragment (#token=…), which browsers never send anywhere.
// The lists are read through the API; the event stream only says which chat to read again.

const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
const chats = new Map(); // ChatId: summary, in the order of the list
const feeds = new Map(); // ChatId: the events read so far
const departures = new Map(); // ChatId: how often this user was removed while the page is open
let current = null;
let me = null;

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  // Titles and names come from people: text, never markup.
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function connection(state, text) {
  byId("connection").dataset.state = state;
  byId("connection").textContent = text;
}

async function get(path) {
  const answer = await fetch(`/api/v1${path}`, { headers: { Authorization: `Bearer ${token}` } });
  if (answer.status === 401) refuse();
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function refuse() {
  connection("refused", token ? "The token is not valid or has expired" : "No token: open the page as …/chats/#token=…");
  byId("hint").hidden = true;
}

// --- Reading ---------------------------------------------------------------------------------------

async function readAll() {
  const before = total(departures);
  const found = [];
  for (let after = ""; after !== null; ) {
    const page = await get(`/chats?limit=500${after && `&after=${after}`}`);
    if (page === null) return;
    found.push(...page.Items);
    after = page.Next;
  }
  if (total(departures) !== before) return readAll(); // the list may still hold what was lost meanwhile
  chats.clear();
  for (const chat of found) chats.set(chat.ChatId, chat);
  showList();
  if (current && !chats.has(current)) leave(current);
  else if (current) await readChat(current);
  else if (found.length) await choose(found[0].ChatId);
}

async function readFeed(id) {
  const feed = feeds.get(id) ?? [];
  for (let after = feed.at(-1)?.Seq ?? 0; after !== null; ) {
    const page = await get(`/chats/${id}/events?limit=500&after=${after}`);
    if (page === null) return null;
    // Two readings may overlap: each number stands once.
    feed.push(...page.Items.filter((event) => event.Seq > (feed.at(-1)?.Seq ?? 0)));
    after = page.Next;
  }
  feeds.set(id, feed);
  return feed;
}

function total(counts) {
  return [...counts.values()].reduce((sum, count) => sum + count, 0);
}

async function readChat(id) {
  const before = departures.get(id);
  const [chat, feed] = await Promise.all([get(`/chats/${id}`), readFeed(id)]);
  if (chat === null || feed === null) {
    leave(id);
    return;
  }
  if (departures.get(id) !== before) return; // removed meanwhile: what was read is no longer for these eyes
  const known = chats.get(id);
  if (known && known.LastSeq > chat.LastSeq) return; // a later reading was faster
  const mine = chat.Participants.find((person) => person.UserId === me);
  const entry = { ...chat, Role: mine?.Role };
  if (known) {
    chats.set(id, entry);
  } else {
    const others = [...chats];
    chats.clear();
    for (const [other, summary] of [[id, entry], ...others]) chats.set(other, summary);
  }
  showList(known && known.LastSeq < chat.LastSeq ? id : null);
  if (current === null) current = id;
  if (current === id) showChat(chat, feed);
}

function leave(id) {
  departures.set(id, (departures.get(id) ?? 0) + 1);
  chats.delete(id);
  feeds.delete(id);
  showList();
  if (current === id) {
    current = null;
    byId("chat").hidden = true;
    // Out of sight is not gone: nothing of it stays in the page either.
    for (const part of ["title", "about", "roster", "feed"]) byId(part).replaceChildren();
    byId("hint").hidden = false;
    byId("hint").textContent = "You are no longer in this chat.";
  }
}

// --- Showing ---------------------------------------------------------------------------------------

function showList(fresh) {
  byId("chats").replaceChildren(
    ...[...chats.values()].map((chat) => {
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-current", String(chat.ChatId === current));
      const closed = chat.Status === "Closed" ? " · closed" : "";
      button.append(
        element("span", chat.Title, "name"),
        element("span", `${chat.Kind}${chat.Role ? ` · ${chat.Role}` : ""}${closed}`, "more"),
      );
      button.addEventListener("click", () => choose(chat.ChatId).catch(() => setTimeout(() => readAgain(chat.ChatId), 1000)));
      const item = element("li");
      item.dataset.chat = chat.ChatId;
      if (chat.ChatId === fresh) item.className = "fresh";
      item.append(button);
      return item;
    }),
  );
  byId("no-chats").hidden = chats.size > 0;
}

async function choose(id) {
  current = id;
  showList();
  await readChat(id);
}

function personName(id, name) {
  return name ? element("span", name, "name") : element("span", `User ${id.slice(0, 8)}`, "name unnamed");
}

function showChat(chat, feed) {
  const mine = chat.Participants.find((person) => person.UserId === me);
  if (mine?.DisplayName) byId("me").textContent = mine.DisplayName;
  byId("hint").hidden = true;
  byId("title").textContent = chat.Title;
  byId("about").textContent = `${chat.Kind} chat · ${chat.Status} · ${chat.Participants.length} people`;
  byId("roster").replaceChildren(
    ...chat.Participants.map((person) => {
      const item = element("li");
      item.dataset.user = person.UserId;
      if (person.UserId === me) item.className = "self";
      item.append(personName(person.UserId, person.DisplayName), element("span", person.RoleRaw ?? person.Role, "role"));
      return item;
    }),
  );
  showFeed(chat.ChatId, feed);
  byId("chat").hidden = false;
}

const SENTENCES = {
  LeadChatProvisioned: () => ["The lead’s chat was opened"],
  DealChatProvisioned: () => ["The deal’s chat was opened"],
  ChatClosed: () => ["The chat was closed"],
  ParticipantJoined: (event) => [personName(event.UserId, event.DisplayName), ` joined as ${event.Role}`],
  ParticipantLeft: (event) => [personName(event.UserId, event.DisplayName), " left"],
  ParticipantRoleChanged: (event) => [
    personName(event.UserId, event.DisplayName),
    `: ${event.PreviousRole} → ${event.Role}`,
  ],
};

function showFeed(id, feed) {
  const list = byId("feed");
  const shown = list.dataset.chat === id ? Number(list.dataset.seq) : null;
  list.dataset.chat = id;
  list.dataset.seq = feed.at(-1)?.Seq ?? 0;
  list.replaceChildren(
    ...feed.toReversed().map((event) => {
      const item = element("li");
      if (shown !== null && event.Seq > shown) item.className = "fresh";
      const sentence = element("span");
      sentence.append(...(SENTENCES[event.Type] ?? (() => [event.Type]))(event));
      const time = element("time", new Date(event.OccurredAt).toLocaleString([], { dateStyle: "short", timeStyle: "short" }));
      time.dateTime = event.OccurredAt;
      item.append(element("span", `#${event.Seq}`, "seq"), sentence, time);
      return item;
    }),
  );
}

// --- Following -------------------------------------------------------------------------------------

// One reading at a time for each chat; what is announced meanwhile is read once more afterwards.
const reading = new Map();
const announced = new Set(); // what changed while the whole list was being read
let listing = false;
let listAgain = false; // the list was to be read anew while it was being read

function readAgain(id) {
  if (listing) {
    announced.add(id);
    return;
  }
  if (reading.has(id)) {
    reading.set(id, true);
    return;
  }
  reading.set(id, false);
  readChat(id)
    .catch(() => setTimeout(() => readAgain(id), 1000))
    .finally(() => {
      const again = reading.get(id);
      reading.delete(id);
      if (again) readAgain(id);
    });
}

function readAllAgain() {
  if (listing) {
    listAgain = true;
    return;
  }
  listing = true;
  readAll()
    .catch(() => setTimeout(readAllAgain, 1000))
    .finally(() => {
      listing = false;
      for (const id of announced) readAgain(id);
      announced.clear();
      if (listAgain) {
        listAgain = false;
        readAllAgain();
      }
    });
}

function follow() {
  const stream = new EventSource(`/api/v1/stream?access_token=${encodeURIComponent(token)}`);
  stream.addEventListener("StreamOpened", (event) => {
    connection("live", "Live");
    if (!JSON.parse(event.data).Resumed) readAllAgain();
  });
  stream.addEventListener("ChatUpdated", (event) => readAgain(JSON.parse(event.data).ChatId));
  stream.addEventListener("ChatRemoved", (event) => leave(JSON.parse(event.data).ChatId));
  stream.addEventListener("error", () => {
    if (stream.readyState === EventSource.CLOSED) {
      // The browser gives up on an answer that is not a stream: a refused token, or a proxy without a server.
      connection("connecting", "Connecting…");
      fetch("/api/v1/chats?limit=1", { headers: { Authorization: `Bearer ${token}` } }).then(
        (answer) => (answer.status === 401 ? refuse() : setTimeout(follow, 2000)),
        () => setTimeout(follow, 2000),
      );
    } else {
      connection("connecting", "Reconnecting…");
    }
  });
}

function whoAmI() {
  try {
    const body = token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return JSON.parse(atob(body)).sub.toLowerCase();
  } catch {
    return null;
  }
}

addEventListener("hashchange", () => location.reload());
me = whoAmI();
if (me === null) {
  refuse();
} else {
  byId("me").textContent = me;
  follow();
}
