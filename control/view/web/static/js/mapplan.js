// The layout of the map: external machines at the top, services in the middle, nodes with
// their pods at the bottom. All lengths are in units of the picture.

import { split } from './format.js';

const CHIP = 30, GAP = 10, NODE_GAP = 18, PAD = 12, MARGIN = 6;
const PODS = 24; // at most, of one node
const SERVICES = 18; // at most

/** flowing puts chips into centred lines from y on, and gives the y below them. */
function flowing(chips, room, y) {
  let line = [], used = 0;
  const flush = () => {
    let x = (room - used + GAP) / 2;
    for (const chip of line) { chip.x = x; chip.y = y; x += chip.width + GAP; }
    if (line.length > 0) y += CHIP + GAP;
    line = [];
    used = 0;
  };
  for (const chip of chips) {
    if (used + chip.width > room - 2 * MARGIN && line.length > 0) flush();
    line.push(chip);
    used += chip.width + GAP;
  }
  flush();
  return y;
}

const chip = (kind, name, label, width, more) => ({ kind, name, label, width, height: CHIP, x: 0, y: 0, ...more });

/** plan lays the map out for a width and a height, which it fills if there is less to show;
 * measure gives the width of a label. */
export function plan(topology, services, { room, least }, measure) {
  const spots = [];
  let y = 6;
  const labels = [];
  const hosts = topology.hosts.map((x) => chip('host', x.name, x.name, measure(x.name) + 48, { filter: ['source', x.addresses.join(',')] }));
  hosts.push(chip('elsewhere', '', 'elsewhere', measure('elsewhere') + 48, {}));
  labels.push({ text: 'OUTSIDE', y: y + 8 });
  y = flowing(hosts, room, y + 20) + 34;
  labels.push({ text: 'SERVICES', y: y + 8 });
  const shown = [...services].sort((a, b) => b.flows.total - a.flows.total).slice(0, SERVICES);
  const chips = [...new Set(shown.map((sv) => `${sv.namespace}/${sv.name}`))].sort().map((name) => chip('service', name, name, Math.max(100, measure(name) + 84), { filter: ['service', name] }));
  y = flowing(chips, room, y + 20) + 46;
  spots.push(...hosts, ...chips);
  const nodes = [];
  const columns = Math.max(1, Math.min(topology.nodes.length, Math.floor((room + NODE_GAP) / (230 + NODE_GAP))));
  const wide = (room - 2 * MARGIN - (columns - 1) * NODE_GAP) / columns;
  let top = y, tallest = 0;
  topology.nodes.forEach((n, i) => {
    const column = i % columns;
    if (column === 0 && i > 0) { top += tallest + 40; tallest = 0; }
    const x = MARGIN + column * (wide + NODE_GAP);
    const pods = topology.pods.filter((p) => p.node === n.name);
    const across = wide > 380 ? 2 : 1;
    const podWide = (wide - 2 * PAD - (across - 1) * 8) / across;
    const inside = pods.slice(0, PODS).map((p, j) => chip('pod', p.name, split(p.name)[1], podWide, { filter: ['pod', p.name], x: x + PAD + (j % across) * (podWide + 8), y: top + 46 + Math.floor(j / across) * (CHIP + 6) }));
    const height = 46 + Math.ceil(inside.length / across) * (CHIP + 6) + (pods.length > PODS ? 20 : 0) + 6;
    nodes.push({ kind: 'node', name: n.name, label: n.name, address: n.addresses[0] ?? '', x, y: top, width: wide, height, more: Math.max(0, pods.length - PODS), filter: ['node', n.name], observed: n.observed });
    tallest = Math.max(tallest, height);
    spots.push(...inside);
  });
  spots.push(...nodes);
  const height = top + tallest + 8;
  spread(spots, labels, Math.max(0, Math.min(280, least - height)));
  return { spots, labels, height: Math.max(height, Math.min(least, height + 280)), nodes };
}

/** spread gives the rows more room: a half of what is to spare above the services, a half below. */
function spread(spots, labels, spare) {
  const shift = { host: 0, elsewhere: 0, service: spare / 2, node: spare, pod: spare };
  for (const p of spots) p.y += shift[p.kind];
  labels[1].y += spare / 2;
}

/** Places finds spots by what records call them. */
export class Places {
  constructor(spots) {
    this.byKey = new Map(spots.map((p) => [`${p.kind} ${p.name}`, p]));
  }

  find(kind, name) { return this.byKey.get(`${kind} ${name}`); }

  /** middle is where dots come and go; of pods it is their sign, so that names stay readable. */
  static middle(p) { return { x: p.x + (p.kind === 'pod' ? 18 : p.width / 2), y: p.y + p.height / 2 }; }

  /** way is the path of a flow's dot: source, the door of the deciding node, service, endpoint. */
  way(r) {
    const { middle } = Places;
    const node = this.find('node', r.node);
    if (!node) return null;
    const door = { x: node.x + node.width / 2, y: node.y };
    const source = (r.sourcePod && this.find('pod', r.sourcePod)) || (r.local && node) || (r.sourceNode && this.find('node', r.sourceNode)) || (r.sourceHost && this.find('host', r.sourceHost)) || this.find('elsewhere', '');
    const start = source.kind === 'node' ? { x: source.x + source.width / 2, y: source.y } : middle(source);
    const points = [start, door];
    const service = r.service && this.find('service', r.service.replace(/:[^:/]*$/, ''));
    if (service) points.push(middle(service));
    if (r.verdict === 'dnat') {
      const endpoint = (r.pod && this.find('pod', r.pod)) || (r.endpointNode && this.find('node', r.endpointNode));
      if (endpoint) points.push(endpoint.kind === 'node' ? { x: endpoint.x + endpoint.width / 2, y: endpoint.y } : middle(endpoint));
    } else if (r.verdict === 'accept') points.push(middle(this.find('elsewhere', '')));
    return points;
  }
}
