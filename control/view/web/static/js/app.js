// The page: the view for the address behind #, and the global keyboard shortcuts.

import { renew, setToken, token, topology } from './api.js';
import { course } from './course.js';
import { h, icon, replace, setText } from './dom.js';
import { ExplainView } from './explain.js';
import { FlowView } from './flow.js';
import { FlowsView } from './flows.js';
import { HoldView } from './hold.js';
import { LabView } from './lab.js';
import { LearnView } from './learn.js';
import { MapView } from './map.js';
import { nodes } from './nodes.js';
import { ServiceView } from './service.js';
import { OverviewView } from './overview.js';
import { ServicesView } from './services.js';
import { stream } from './stream.js';
import { link } from './filter.js';
import { switches, toggleSize, toggleTheme } from './theme.js';
import { showHelp } from './help.js';
import { WhyView } from './why.js';

const views = [
  { name: 'learn', title: 'Learn', key: 'c' },
  { name: 'overview', title: 'Overview', key: 'o' }, { name: 'flows', title: 'Flows', key: 'f' }, { name: 'services', title: 'Services', key: 's' }, { name: 'map', title: 'Map', key: 'm' },
  { name: 'why', title: 'Why', key: 'w' }, { name: 'explain', title: 'Explain', key: 'e' }, { name: 'hold', title: 'Hold', key: 'h' }, { name: 'lab', title: 'Lab', key: 'l' },
];
const makers = { overview: OverviewView, why: WhyView, flows: FlowsView, flow: FlowView, services: ServicesView, service: ServiceView, map: MapView, explain: ExplainView, hold: HoldView, lab: LabView, learn: LearnView };

const main = document.getElementById('main');
let current = null;
let before = null; // the first of two keys
let home = 'overview'; // the view where the address has none

function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  let parts = [];
  try { parts = path.split('/').filter(Boolean).map(decodeURIComponent); } catch { /* no address of this page */ }
  const named = views.some((v) => v.name === parts[0]);
  return { named, view: named ? parts[0] : home, path: parts, query: new URLSearchParams(query) };
}

function makerOf({ view, path }) {
  if (view === 'flows' && path.length > 1) return 'flow';
  if (view === 'services' && path.length > 2) return 'service';
  return view;
}

function show() {
  const handed = /^#token=(.+)$/.exec(location.hash); // to a page that is open already; else see boot.js
  if (handed) {
    setToken(decodeURIComponent(handed[1]));
    history.replaceState(null, '', '#/');
  }
  const route = parse(location.hash);
  if (!route.named) history.replaceState(null, '', `#/${home}`);
  const maker = makerOf(route);
  if (!(current?.maker === maker && current.view.update?.(route))) {
    current?.view.leave?.();
    const view = new makers[maker](route);
    current = { maker, view };
    replace(main, view.element);
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  document.title = `${current.view.title} · nfqproxy`;
  for (const a of document.querySelectorAll('#nav a')) {
    const is = a.dataset.view === route.view;
    if (is) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
}

/** go shows a view; flows and map keep the filters. */
function go(name) {
  location.hash = name === 'flows' ? link(new URLSearchParams(stream.filters ?? '')) : `#/${name}`;
}

function navigation() {
  replace(document.getElementById('nav'), views.map((v) => h('a', { hidden: v.name === 'learn', href: `#/${v.name}`, 'data-view': v.name, title: `g ${v.key}`, onclick: (e) => { if (!e.ctrlKey && !e.metaKey && !e.shiftKey) { e.preventDefault(); go(v.name); } } }, icon(v.name), h('span', null, v.title))));
  replace(document.getElementById('switches'), switches(), h('button', { type: 'button', class: 'switch', id: 'keys', 'aria-label': 'Keyboard shortcuts', title: 'Keyboard shortcuts (?)', onclick: showHelp }, icon('keys')));
}

const everywhere = { '?': showHelp, t: toggleTheme, l: toggleSize };

function key(e) {
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector('dialog[open]')) return;
  const typing = e.target.closest?.('input:not([type=checkbox]), select, textarea');
  if (typing && e.key !== 'Escape') return;
  if (typing) { e.target.blur(); return; }
  if (e.key === 'Enter' && e.target.closest?.('a, button, summary, [role=button]')) return; // its own
  const go2 = before === 'g' ? views.find((v) => v.key === e.key) : null;
  before = before === 'g' ? null : e.key;
  const action = go2 ? () => go(go2.name) : current?.view.keys?.[e.key] ?? everywhere[e.key];
  if (!action || action() === false) return;
  before = null;
  e.preventDefault();
}

/** describe shows where the page is, and the views that there are. */
function describe(t) {
  setText(document.getElementById('place'), t.lab ? `lab ${t.lab}` : t.nodes.length === 1 ? t.nodes[0].name : `${t.nodes.length} nodes`);
  const offer = (name, is) => { document.querySelector(`#nav a[data-view=${name}]`).hidden = !is; };
  offer('learn', t.canLearn);
  offer('hold', t.canHold);
  offer('lab', t.canChange);
  offer('why', t.canWhy);
  offer('explain', !t.canWhy); // the question that a node without the cluster's objects can answer
  document.documentElement.dataset.token = token() ? 'yes' : 'no';
}

/** restart shows another lab: that of another unit. */
function restart() {
  renew();
  topology().then(describe).catch(() => { /* as before, then */ });
  stream.forget();
  if (!current || current.maker === 'learn') return;
  current.view.leave?.();
  current = null;
  show();
}

navigation();
nodes.follow();
addEventListener('hashchange', show);
addEventListener('keydown', key);
if (parse(location.hash).named) show();

topology().then((t) => {
  describe(t);
  if (!t.canLearn) return;
  home = 'learn';
  course.begun(restart);
  course.follow();
}).catch(() => { /* the view that needs it shows the error */ }).finally(() => { if (!current) show(); });
