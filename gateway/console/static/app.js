// Small behaviours that pages need besides htmx. No inline handlers, no eval.
const one = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- dialogs, tabs, copying, theme ---

document.addEventListener('click', event => {
  const button = event.target.closest('button, [data-open], [data-close]');
  if (!button) {
    if (event.target.matches('dialog')) event.target.close(); // the backdrop
    return;
  }
  if (button.matches('a')) event.preventDefault(); // its address is for those without a script
  if (button.dataset.open) open(one(button.dataset.open));
  if ('close' in button.dataset) button.closest('dialog').close();
  if (button.dataset.copy) copy(button);
  if ('themeToggle' in button.dataset) toggleTheme();
  if (button.getAttribute('role') === 'tab') choose(button);
});

function open(dialog) {
  dialog.showModal();
  if (dialog.id !== 'connect') return;
  // What was heard before, also in the moment that the page does not know of yet, is no sign.
  dialog.dataset.since = Math.max(heard(), Date.now() / 1000 + ahead);
  dialog.classList.remove('heard');
}
const ahead = Number(document.body.dataset.now) - Date.now() / 1000; // the gateway's clock
const heard = () => Number(one('[data-heard]').dataset.heard);

async function copy(button) {
  const source = one(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch { // no permission: select it, so that a key press copies
    getSelection().selectAllChildren(source);
    document.execCommand('copy');
  }
  button.classList.add('done');
  setTimeout(() => button.classList.remove('done'), 1200);
}

function choose(tab) {
  for (const other of all('[role=tab]', tab.parentElement)) {
    const chosen = other === tab;
    other.setAttribute('aria-selected', chosen);
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute('aria-controls')).hidden = !chosen;
  }
  tab.focus();
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  localStorage.setItem('theme', root.dataset.theme);
}

// --- keys ---

let going = false;
// Single keys can be switched off: those who speak to their machine press them by accident.
const keysOn = one('#keys-on');
keysOn.checked = localStorage.getItem('keys') !== 'off';
keysOn.addEventListener('change', () => localStorage.setItem('keys', keysOn.checked ? 'on' : 'off'));
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = event.target.closest?.('[role=tab]');
  if (tab && ['ArrowRight', 'ArrowLeft', 'Home', 'End'].includes(event.key)) {
    const tabs = all('[role=tab]', tab.parentElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    choose(step ? tabs.at((tabs.indexOf(tab) + step) % tabs.length) : tabs.at(event.key === 'End' ? -1 : 0));
    event.preventDefault();
    return;
  }
  if (!keysOn.checked) return;
  if (event.target.closest?.('input, textarea, select') || one('dialog[open]')) {
    if (event.key === 'Escape' && event.target.matches('[data-search]')) event.target.blur();
    return;
  }
  if (going) {
    going = false;
    one(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  switch (event.key) {
    case '/': {
      const search = one('[data-search]');
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
      break;
    }
    case 'g': going = true; setTimeout(() => { going = false; }, 1000); break;
    case 't': toggleTheme(); break;
    case 'k': open(one('#connect')); break;
    case '?': open(one('#keys')); break;
  }
});

// --- times and countdowns ---

function span(seconds) {
  for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return '0 s';
}

function age() {
  for (const time of all('time[data-at]')) {
    const seconds = Date.now() / 1000 - Number(time.dataset.at);
    const words = Math.abs(seconds) < 5 ? 'just now' : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
    if (time.textContent !== words) time.textContent = words;
  }
  for (const time of all('time[data-clock]')) {
    const words = new Date(Number(time.dataset.clock) * 1000).toLocaleTimeString('en-GB');
    if (time.textContent !== words) time.textContent = words;
  }
}

// The server says how much is left, so a clock that is wrong here does not matter.
const deadlines = new WeakMap();
function count() {
  for (const mark of all('[data-deadline]')) {
    let until = deadlines.get(mark);
    if (!until || until.key !== mark.dataset.deadline) {
      until = { key: mark.dataset.deadline, at: performance.now() + Number(mark.dataset.left) * 1000 };
      deadlines.set(mark, until);
    }
    const left = Math.max(0, Math.round((until.at - performance.now()) / 1000));
    if (mark.matches('progress')) {
      mark.value = left;
      mark.classList.toggle('soon', left <= 15);
    } else {
      mark.textContent = left ? `${left} s left` : 'time is up';
    }
  }
}
// The tab says that someone is waited for, whatever page it shows; to those who listen, each new
// call is told once, and nothing of what ticks.
const title = document.title;
const voice = one('#voice');
const tell = words => { if (words) voice.textContent = words.replace(/\s+/g, ' ').trim(); };
const told = new Set();
let waited = null;
function call() {
  const waiting = Number(one('#nav-approvals .hot')?.textContent.replaceAll(',', '') ?? 0);
  document.title = waiting ? `(${waiting}) ${title}` : title;
  const fresh = all('.card:not(.ended)').filter(card => !told.has(card.id));
  for (const card of fresh) told.add(card.id);
  const more = waited !== null && waiting > waited;
  waited = waiting;
  if (more && fresh.length) tell(`A call waits for a decision: ${one('header', fresh.at(-1)).textContent}`);
  else if (more) tell(waiting === 1 ? 'A call waits for a decision' : `${waiting} calls wait for a decision`);
}
// What scrolls can be reached by keys, and nothing else of the kind.
function reach() {
  for (const box of all('pre, .args, .desc, .scroll, .tabs')) {
    const scrolls = box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1;
    if (scrolls && getComputedStyle(box).overflowX !== 'visible') box.tabIndex = 0;
    else box.removeAttribute('tabindex');
  }
}
age();
count();
call();
reach();
addEventListener('resize', reach);
document.addEventListener('toggle', reach, true); // a fold that was opened
setInterval(age, 5000);
setInterval(count, 1000);

// --- live ---

const live = one('#live');
const say = (state, words) => {
  live.hidden = false;
  live.dataset.state = state;
  live.lastElementChild.textContent = words;
};
say('wait', 'connecting');
let away = null; // what will say so, unless the stream is back at once, as it is when a tab is
const lost = () => {
  const since = new Date().toLocaleTimeString('en-GB');
  away ??= setTimeout(() => say('off', `not live since ${since}, trying again`), 1000);
};
const signOut = () => location.assign('/console/sign-in');
document.addEventListener('htmx:sse:after:connection', event => {
  const again = away !== null;
  clearTimeout(away);
  away = null;
  say('on', 'live');
  // Parts that are live come anew with every stream; lists behind a filter ask for themselves.
  if (again) for (const news of ['catalog', 'ledger']) htmx.trigger(event.target, news);
});
document.addEventListener('htmx:sse:before:connection', event => {
  if (event.detail.connection.attempt > 0) lost();
});
document.addEventListener('htmx:sse:error', event => {
  if (event.detail.status === 401) signOut();
  else lost();
});
document.addEventListener('signed-out', signOut);
// A first stream that was refused, or got no answer, is tried again here: the extension does so
// only for one that once stood.
function connectAgain(event) {
  const stream = event.detail.ctx?.sourceElement;
  if (stream?.id !== 'stream') return false;
  event.preventDefault();
  if (event.detail.ctx.response?.status === 401) signOut();
  lost();
  setTimeout(() => htmx.ajax('GET', stream.getAttribute('hx-sse:connect'), { source: stream }), 3000);
  return true;
}
document.addEventListener('htmx:after:request', connectAgain);
document.addEventListener('htmx:error', event => {
  const { ctx, error } = event.detail;
  if (connectAgain(event) || error?.name === 'AbortError' || ctx?.request?.method !== 'POST') return;
  toast('The gateway did not answer. Look at what holds before you do it again.');
});
function toast(words) {
  const box = document.createElement('div');
  box.className = 'toast no';
  box.textContent = words;
  one('#toasts').append(box);
  pass();
}

// A card that ended while the pointer or the focus is on the cards stays where it is, switched off:
// otherwise the next one would slide under a finger that is about to press. The focus stays with it.
let held = null;
document.addEventListener('htmx:before:swap', event => {
  for (const task of event.detail.tasks) {
    if (task.target?.id !== 'cards') continue;
    held = document.activeElement?.closest('.card')?.id ?? null;
    keepPlaces(task.target, task.fragment);
  }
});
function holdFocus() {
  const card = held && document.getElementById(held);
  held = null;
  const lost = document.activeElement === document.body || document.activeElement?.matches(':disabled');
  if (lost && card?.matches('.ended')) card.focus({ preventScroll: true });
}

function keepPlaces(cards, fragment) {
  for (const card of all('.ended', fragment)) {
    if (endings.has(card.id) && !document.getElementById(card.id)) card.remove();
  }
  if (!cards.matches(':hover, :focus-within')) return;
  const coming = new Set(all('.card', fragment).map(card => card.id));
  const old = all('.card', cards);
  old.forEach((card, place) => {
    if (coming.has(card.id)) return;
    const ended = card.cloneNode(true);
    ended.classList.add('ended', 'kept');
    for (const control of all('button, input', ended)) control.disabled = true;
    const left = one('.left:not(.ending)', ended);
    if (left) left.textContent = 'No longer waits';
    const before = old.slice(place + 1).find(next => coming.has(next.id));
    fragment.insertBefore(ended, before ? fragment.getElementById(before.id) : null);
  });
}
// What ended says so for a moment, and is not shown again.
const endings = new Map(); // by card: when its end was first seen
function passCards() {
  for (const card of all('.card.ended')) {
    if (endings.has(card.id)) continue;
    endings.set(card.id, Date.now());
    setTimeout(sweep, 5100);
  }
}
const sweep = () => {
  const cards = one('#cards');
  if (!cards || cards.matches(':hover, :focus-within')) return;
  for (const card of all('.ended', cards)) {
    if (card.matches('.kept') || Date.now() - endings.get(card.id) > 5000) card.remove();
  }
};
passCards();
document.addEventListener('pointerover', sweep);
document.addEventListener('focusin', sweep);

document.addEventListener('htmx:after:swap', () => {
  age();
  count();
  call();
  reach();
  holdFocus();
  passCards();
  pass();
  const dialog = one('#connect');
  if (dialog.open && heard() > Number(dialog.dataset.since)) dialog.classList.add('heard');
});
// A toast stays until it is read: longer where it says more, and while the pointer is on it.
function pass() {
  for (const box of all('.toast:not([data-shown])')) {
    box.dataset.shown = '';
    const leave = () => box.matches(':hover') ? setTimeout(leave, 1000) : box.remove();
    setTimeout(leave, 5000 + 40 * box.textContent.length);
  }
}
// Those who listen are told what came of what they did, not all that the page then shows.
document.addEventListener('htmx:after:swap', event => {
  const target = event.detail.ctx?.target;
  if (!(target instanceof Element)) return;
  if (target.matches('#preview, #result')) tell(one('.sum, .notice, .result header', target)?.textContent);
  if (document.activeElement?.closest('#filter')) tell(one('#results .under .muted, #results .empty h2')?.textContent);
});

// --- a time chosen by dragging over bars; a press on one follows its link ---

let brush = null;
const bars = svg => all('.hit', svg);
const between = (svg, x) => bars(svg).filter(bar => {
  const box = bar.getBoundingClientRect();
  return box.right > Math.min(brush.x, x) && box.left < Math.max(brush.x, x);
});
document.addEventListener('pointerdown', event => {
  const svg = event.target.closest?.('[data-brush]');
  if (svg && event.button === 0) brush = { svg, x: event.clientX, moved: false };
});
document.addEventListener('pointermove', event => {
  if (!brush || (!brush.moved && Math.abs(event.clientX - brush.x) < 5)) return;
  brush.moved = true;
  const chosen = new Set(between(brush.svg, event.clientX));
  for (const bar of bars(brush.svg)) bar.classList.toggle('in', chosen.has(bar));
});
document.addEventListener('pointerup', event => {
  const { svg, moved } = brush ?? {};
  if (moved) chooseTime(between(svg, event.clientX));
  setTimeout(() => { brush = null; }); // after the click that this may be
});
document.addEventListener('pointercancel', () => { brush = null; });
document.addEventListener('dragstart', event => { if (brush) event.preventDefault(); });
document.addEventListener('click', event => { if (brush?.moved) event.preventDefault(); }, true);

function chooseTime(chosen) {
  const form = one('#filter');
  if (!chosen.length || !form) return;
  const written = seconds => new Date(seconds * 1000).toISOString().slice(0, 19);
  form.elements.from.value = written(chosen[0].dataset.from);
  form.elements.to.value = written(chosen.at(-1).dataset.to);
  form.elements.since.value = '';
  form.requestSubmit();
}

// Of two ways to say a time, the last one counts.
document.addEventListener('input', event => {
  const { form, name } = event.target;
  if (form?.id !== 'filter' || !form.elements.from) return;
  if (name === 'since') form.elements.from.value = form.elements.to.value = '';
  if (name === 'from' || name === 'to') form.elements.since.value = '';
}, true);

// --- forms ---

// What is empty does not belong into an address.
document.addEventListener('htmx:config:request', event => {
  const { request } = event.detail.ctx;
  if (request.method !== 'GET' || !(request.body instanceof FormData)) return;
  for (const [name, value] of [...request.body]) if (value === '') request.body.delete(name);
});
document.addEventListener('change', event => {
  event.target.closest?.('form[data-auto]')?.requestSubmit();
});
// Filters of pages that are not asked for in parts.
document.addEventListener('submit', event => {
  if (event.defaultPrevented) return;
  for (const input of all('input, select', event.target)) {
    if (event.target.method === 'get' && !input.value) input.disabled = true;
  }
});
// A definition's file may be dropped anywhere on the form of a connection.
for (const kind of ['dragover', 'dragleave', 'drop']) {
  document.addEventListener(kind, event => {
    const form = event.target.closest?.('form.new');
    if (!form || !event.dataTransfer.types.includes('Files')) return;
    event.preventDefault();
    form.classList.toggle('dropping', kind === 'dragover');
    const input = one('[type=file]', form);
    if (kind !== 'drop' || input.matches(':disabled')) return;
    input.files = event.dataTransfer.files;
    input.dispatchEvent(new Event('input', { bubbles: true }));
  });
}
document.addEventListener('input', event => {
  const input = event.target;
  if (input.type !== 'file') return;
  const large = [...input.files].some(file => file.size > Number(input.dataset.most));
  if (large) input.value = ''; // it would not be taken
  input.setCustomValidity(large ? 'This file is too large. Give the address where it can be fetched.' : '');
  input.reportValidity();
}, true);
