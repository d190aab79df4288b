// What the map shows, and where: callers on the left, services in the middle, endpoints on the
// right. All lengths are in units of the picture.

import { Leg } from './leg.js';

const SERVICES = 12; // at most
const CALLS = 28; // connections from callers to services, at most
const SELECTIONS = 32; // connections from services to endpoints, at most
const SHOWN = 1.5; // what a connection that is shown already weighs more, so that the map is calm
export const ROW = 24; // of one connection at a chip
const CHIP = 30, SERVICE = 48, GAP = 10, HEAD = 30, MARGIN = 2;
const LINE = 16; // of small text
const ROOMY = 1200; // units of a picture, from which a pod's node stands beside its name
const LABEL = 96; // the level end of a connection, under its figures
const DETOUR = 30; // the most that a gap grows to level the columns

/** pick chooses the connections to show: those that fail, then the busiest. */
export function pick(connections, shown = new Set()) {
  const fails = (c) => (c.failed + c.unanswered > 0 ? 1 : 0), weight = (c) => c.flows * (shown.has(c.key) ? SHOWN : 1);
  const ranked = (all) => [...all.values()].filter((c) => c.flows > 0).map((c) => [fails(c), weight(c), c]).sort(([f, a, x], [g, b, y]) => g - f || b - a || (x.key < y.key ? -1 : 1)).map(([, , c]) => c);
  const calls = ranked(connections.calls), selections = ranked(connections.selections);
  const services = new Map(), picked = { calls: [], selections: [], all: connections };
  for (const c of calls) {
    if (picked.calls.length === CALLS) break;
    if (!services.has(c.to.key) && services.size === SERVICES) continue;
    services.set(c.to.key, c.to);
    picked.calls.push(c);
  }
  picked.services = [...services.values()];
  picked.selections = selections.filter((c) => services.has(c.from.key)).slice(0, SELECTIONS);
  picked.keys = new Set([...picked.calls, ...picked.selections].map((c) => c.key));
  picked.left = calls.length + selections.length - picked.keys.size;
  picked.refusing = new Set(calls.filter((c) => services.has(c.to.key) && [...c.reasons.values()].some((n) => n > 0)).map((c) => c.to.key));
  return picked;
}

/** alike is true if two picks have the same layout. */
export const alike = (a, b) => ['keys', 'refusing'].every((k) => a[k].size === b[k].size && [...a[k]].every((x) => b[k].has(x)));

const mean = (list) => list.reduce((sum, x) => sum + x, 0) / Math.max(1, list.length);

/** sort orders chips by the middle of what they are connected to, then by name. */
function sort(chips, others, connected) {
  const at = new Map(others.map((x, i) => [x.key, i]));
  for (const chip of chips) chip.middle = mean(connected(chip).map((key) => at.get(key)).filter((i) => i !== undefined));
  chips.sort((a, b) => a.middle - b.middle || (a.key < b.key ? -1 : 1));
}

/** column puts chips under each other, with gaps that level columns of different heights. */
function column(chips, x, width, height) {
  const own = chips.reduce((sum, c) => sum + c.height, 0);
  const gap = Math.min(GAP + DETOUR, Math.max(GAP, (height - own) / Math.max(1, chips.length)));
  let y = HEAD + Math.max(0, (height - own - gap * (chips.length - 1)) / 2);
  for (const chip of chips) {
    Object.assign(chip, { x, y, width });
    y += chip.height + gap;
  }
}

/** plan lays out what was picked for a width. */
export function plan({ services, calls, selections, refusing }, room) {
  const wide = Math.max(170, Math.min(280, room * 0.19));
  const chips = (places) => [...new Map(places.map((p) => [p.key, { ...p }])).values()];
  const columns = { callers: chips(calls.map((c) => c.from)), services: chips(services), endpoints: chips(selections.map((c) => c.to)) };
  const { callers, services: middle, endpoints } = columns;
  middle.sort((a, b) => (a.key < b.key ? -1 : 1));
  const callersOf = (sv) => calls.filter((c) => c.to.key === sv.key).map((c) => c.from.key);
  const servicesOf = (p) => calls.filter((c) => c.from.key === p.key).map((c) => c.to.key);
  for (let i = 0; i < 2; i++) {
    sort(callers, middle, servicesOf);
    sort(middle, callers, callersOf);
  }
  sort(callers, middle, servicesOf);
  sort(endpoints, middle, (p) => selections.filter((c) => c.to.key === p.key).map((c) => c.from.key));
  for (const chip of [...callers, ...endpoints]) {
    chip.below = chip.on && room < ROOMY;
    chip.height = CHIP + (chip.below ? LINE : 0);
  }
  // A service that refuses flows has two lines for the reason.
  for (const chip of middle) {
    chip.refuses = refusing.has(chip.key);
    chip.height = SERVICE + (chip.refuses ? 2 * LINE : 0);
  }
  for (const [list, connections, end] of [[callers, calls, 'from'], [middle, calls, 'to'], [middle, selections, 'from'], [endpoints, selections, 'to']]) {
    for (const chip of list) chip.height = Math.max(chip.height, connections.filter((c) => c[end].key === chip.key).length * ROW + 8);
  }
  const height = Math.max(...Object.values(columns).map((list) => list.reduce((sum, c) => sum + c.height + GAP, -GAP)), 0);
  const xs = [MARGIN, (room - wide) / 2, room - MARGIN - wide];
  Object.values(columns).forEach((list, i) => column(list, xs[i], wide, height));
  const at = (list) => new Map(list.map((chip) => [chip.key, chip]));
  const lines = [...join(calls, at(callers), at(middle)), ...join(selections, at(middle), at(endpoints))];
  return { columns, lines, height: HEAD + height + 12, heads: xs };
}

/** join gives each connection its own row at both of its chips, in the order of the other ends. */
function join(connections, left, right) {
  const lines = connections.map((connection) => ({ connection, from: left.get(connection.from.key), to: right.get(connection.to.key) }));
  const rows = (end, other, edge) => {
    for (const chip of new Set(lines.map((l) => l[end]))) {
      const mine = lines.filter((l) => l[end] === chip).sort((a, b) => a[other].y - b[other].y);
      mine.forEach((l, i) => { l[edge] = { x: end === 'from' ? chip.x + chip.width : chip.x, y: chip.y + chip.height / 2 + (i - (mine.length - 1) / 2) * ROW }; });
    }
  };
  rows('from', 'to', 'a');
  rows('to', 'from', 'b');
  for (const l of lines) {
    const bend = { x: l.b.x - LABEL, y: l.b.y };
    l.legs = [new Leg(l.a, bend), new Leg(bend, l.b)];
  }
  return lines;
}

/** wayOf is the way of a flow's dot: to the service, through it, and to the endpoint; null: it is not shown. */
export function wayOf(lines, call, selection) {
  const first = lines.get(call), second = selection && lines.get(selection);
  if (!first) return null;
  return second ? [...first.legs, new Leg(first.b, second.a), ...second.legs] : first.legs;
}
