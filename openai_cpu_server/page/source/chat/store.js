// Storage of conversations: IndexedDB of this browser. If that is forbidden, they last as long as the page.

const NAME = "openai-cpu-server";
const STORES = ["conversations", "messages"];
let opening = null;

/** True if nothing can be stored. */
export let isForgetful = false;
const memory = new Map(STORES.map((name) => [name, new Map()]));

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(shared(request.result));
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another version of this page is open"));
  }).catch(() => {
    isForgetful = true;
    return null;
  });
  return opening;
}

/** People may clear this browser's data, or open a newer version of the page in another tab. */
function shared(db) {
  db.onclose = () => (opening = null);
  db.onversionchange = () => {
    db.close();
    opening = null;
  };
  return db;
}

function answer(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function reading(name, request, otherwise) {
  const db = await database();
  return db ? answer(request(db.transaction(name).objectStore(name))) : otherwise(memory.get(name));
}

export const allConversations = () => reading("conversations", (store) => store.getAll(), (entries) => [...entries.values()]);

export const conversationOf = (id) => reading("conversations", (store) => store.get(id), (entries) => entries.get(id));

export const messagesOf = (id) =>
  reading(
    "messages",
    (store) => store.index("conversation").getAll(id),
    (entries) => [...entries.values()].filter((one) => one.conversation === id),
  );

/** Ids of conversations with these lower-case words in a message or in the name of an attached file. */
export async function conversationsWith(words) {
  const found = new Set();
  const look = ({ conversation, content, files }) => {
    const texts = [content, ...(files ?? []).map((file) => file.name)];
    if (texts.some((text) => text?.toLowerCase().includes(words))) found.add(conversation);
  };
  const db = await database();
  if (!db) memory.get("messages").forEach(look);
  else await eachOf(db.transaction("messages").objectStore("messages").openCursor(), look);
  return found;
}

/** One at a time, because pictures may be large. */
function eachOf(request, look) {
  return new Promise((resolve, reject) => {
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      if (!request.result) return resolve();
      look(request.result.value);
      request.result.continue();
    };
  });
}

/** Writes and deletes everything or nothing. `puts`: {conversations: [...], messages: [...]}; `deletes`: ids. */
export async function write({ puts = {}, deletes = {} }) {
  const db = await database();
  if (!db) return remember(puts, deletes);
  const transaction = db.transaction(STORES, "readwrite");
  for (const name of STORES) {
    const store = transaction.objectStore(name);
    for (const value of puts[name] ?? []) store.put(value);
    for (const id of deletes[name] ?? []) store.delete(id);
  }
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

function remember(puts, deletes) {
  for (const name of STORES) {
    for (const value of puts[name] ?? []) memory.get(name).set(value.id, value);
    for (const id of deletes[name] ?? []) memory.get(name).delete(id);
  }
}
