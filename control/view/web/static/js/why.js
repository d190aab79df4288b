// The view that finds out why a connection fails, or that it works.

import { get, post, topology } from './api.js';
import { h, icon, replace } from './dom.js';
import { finding } from './finding.js';
import { blame, field } from './form.js';
import { candidates, facts, raw } from './life.js';
import { Picture } from './picture.js';
import { requester } from './request.js';

const OFFERED = 500; // suggestions in a list, at most: browsers slow down with more

export class WhyView {
  title = 'Why';

  constructor(route) {
    this.abort = new AbortController();
    this.sources = h('datalist', { id: 'sources' });
    this.destinations = h('datalist', { id: 'destinations' });
    this.from = h('input', { type: 'text', list: 'sources', autocomplete: 'off', spellcheck: 'false', placeholder: 'a pod, a node, an address, or outside' });
    this.to = h('input', { type: 'text', list: 'destinations', autocomplete: 'off', spellcheck: 'false', placeholder: 'web.shop:80, or an address with a port' });
    this.protocol = h('select', null, [['', 'by the port'], ['TCP', 'TCP'], ['UDP', 'UDP'], ['SCTP', 'SCTP']].map(([value, text]) => h('option', { value }, text)));
    this.node = h('select', null, h('option', { value: '' }, 'by the source'));
    this.submit = h('button', { type: 'submit', class: 'button primary' }, 'Why?', h('kbd', { 'aria-hidden': 'true' }, '↵'));
    this.form = h('form', { class: 'form', novalidate: true, onsubmit: (e) => { e.preventDefault(); this.remember(); } },
      field('from', 'From', this.from, 'Where the connection starts.'), field('to', 'To', this.to, 'A service by its DNS name, a pod (pod/NAMESPACE/NAME), a node or an address.'),
      h('div', { class: 'pair-fields even' }, field('protocol', 'Protocol', this.protocol), field('node', 'Deciding node', this.node)),
      h('p', { class: 'wrong all', role: 'alert', hidden: true }), this.submit, this.sources, this.destinations);
    this.picture = new Picture('The path of the first packet');
    this.head = h('div', { class: 'headline answer', role: 'status' });
    this.cause = h('ul', { class: 'findings' });
    this.ends = h('div', { class: 'ends' });
    this.attempt = h('div');
    this.side = h('div', { class: 'side' });
    this.columns = h('div', { class: 'columns' }, this.picture.element, this.side);
    this.result = h('div', { class: 'result', hidden: true }, this.head, this.cause, this.ends, this.attempt, this.columns);
    this.invitation = h('div', { class: 'empty' }, icon('why'), h('p', null, 'Why does a service not answer? Name a source and a destination.'), h('p', { class: 'hint' }, 'The answer comes from the cluster’s objects, its service tables and recent flows. No packet is sent.'), h('div', { class: 'examples' }));
    this.element = h('section', { class: 'explain inquiry', 'aria-labelledby': 'title' },
      h('div', { class: 'question' }, h('h1', { id: 'title' }, 'Why?'), this.form), h('div', { class: 'outcome' }, this.invitation, this.result));
    this.suggest().catch((e) => blame(this.form, { field: '', message: e.message })).then(() => this.update(route));
  }

  /** suggest fills in names of the cluster: of lists, and of examples where no question was put yet. */
  async suggest() {
    const [t, { services }] = this.known = await Promise.all([topology(), get(`/v1/services?limit=${OFFERED}`, this.abort.signal)]);
    replace(this.sources, h('option', { value: 'outside' }), t.pods.slice(0, OFFERED).map((p) => h('option', { value: p.name }, [p.addresses[0], p.node].filter(Boolean).join(' on '))), t.nodes.map((n) => h('option', { value: n.name }, 'node')), t.hosts.map((x) => h('option', { value: x.name }, 'outside of the cluster')));
    replace(this.destinations, services.slice(0, OFFERED).map((sv) => h('option', { value: `${sv.name}.${sv.namespace}:${sv.port}` }, `${sv.protocol} ${sv.clusterIP}`)));
    this.node.append(...t.nodes.map((n) => h('option', { value: n.name }, n.name)));
    if (t.pods.length === 0 || services.length === 0) return;
    const examples = [[t.pods[0].name, services[0]], ['outside', services.find((sv) => sv.nodePort) ?? services[0]]].map(([from, sv]) => ({ from, to: `${sv.name}.${sv.namespace}:${sv.port}` }));
    replace(this.invitation.querySelector('.examples'), examples.map((q) => h('a', { class: 'button small', href: `#/why?${new URLSearchParams(q)}` }, `${q.from} → ${q.to}`)));
  }

  /** update fills in the form from the page's address, and sends the question if it is complete. */
  update({ query }) {
    const q = query.toString();
    if (q === this.query) return true;
    this.query = q;
    this.from.value = query.get('from') ?? '';
    this.to.value = query.get('to') ?? '';
    for (const name of ['protocol', 'node']) {
      this[name].value = query.get(name) ?? '';
      if (this[name].selectedIndex < 0) this[name].selectedIndex = 0;
    }
    if (query.get('to')) this.request();
    else this.from.focus({ preventScroll: true });
    return true;
  }

  keys = { '/': () => this.from.focus() };

  leave() {
    this.abort.abort();
    this.picture.leave();
  }

  question() {
    const q = { from: this.from.value.trim(), to: this.to.value.trim() };
    if (this.protocol.value) q.protocol = this.protocol.value;
    if (this.node.value) q.node = this.node.value;
    return q;
  }

  /** remember puts the question into the page's address, so that it can be shared, and sends it. */
  remember() {
    this.query = new URLSearchParams(this.question()).toString();
    history.replaceState(null, '', `#/why?${this.query}`);
    this.request();
  }

  async request() {
    this.submit.setAttribute('aria-busy', 'true');
    const number = this.number = (this.number ?? 0) + 1; // a later question has the answer shown
    try {
      const a = await post('/v1/why', this.question(), this.abort.signal);
      const path = a.record && await this.walk(a);
      if (number !== this.number) return;
      blame(this.form, null);
      this.show(a, path);
    } catch (e) {
      if (this.abort.signal.aborted || number !== this.number) return;
      this.result.hidden = true;
      this.invitation.hidden = false;
      blame(this.form, e);
    } finally {
      this.submit.removeAttribute('aria-busy');
    }
  }

  /** walk is the decision with the path of the reply, from the node itself. A node that does not answer leaves the one that is in the answer. */
  async walk({ record: r, node }) {
    try {
      return await post('/v1/explain', { protocol: r.protocol, source: r.source, destination: r.destination, local: r.local, node, reply: true, seed: 1 }, this.abort.signal);
    } catch (e) {
      if (this.abort.signal.aborted) throw e;
      return r;
    }
  }

  /** tryIt offers to send the connection in question. */
  tryIt(a) {
    const [t] = this.known ?? [{}], r = a.record, from = a.source.name.replace(/^(pod|node|client) /, '');
    const host = [...(t.pods ?? []), ...(t.nodes ?? []), ...(t.hosts ?? [])].some((x) => x.name === from);
    replace(this.attempt, t.canRequest && r && host && r.protocol !== 'SCTP' && requester('Try it', () => ({ from, to: r.destination, protocol: r.protocol.toLowerCase() }), this.abort.signal));
  }

  show(a, path) {
    this.invitation.hidden = true;
    this.result.hidden = false;
    const name = (end) => (end.name.startsWith('an address') && end.address ? end.address : end.name);
    const from = name(a.source), to = name(a.destination);
    replace(this.head, h('h2', null, `${from} → ${to}`), h('span', { class: 'pill headline', 'data-tone': { works: 'good', partly: 'warn' }[a.outcome] ?? 'bad' }, a.headline));
    replace(this.cause, [a.cause, ...(a.notes ?? [])].filter(Boolean).map((f) => finding(f, { open: f === a.cause })));
    const row = (name, ...value) => [h('dt', null, name), h('dd', null, value)];
    replace(this.ends, h('dl', { class: 'facts card-box' },
      a.source.address && row('Source', a.source.address), a.destination.address && row('Destination', a.destination.address),
      a.nodeIs && row('Node', a.node ? `${a.node}: ${a.nodeIs}` : `not known: ${a.nodeIs}`),
      a.passed?.map((p) => row('Before', `${p.node} passes it on unchanged: ${p.is}`)),
      a.endpoints?.length > 0 && row('Endpoints', h('ul', { class: 'answering' }, a.endpoints.map((e) => h('li', { 'data-tone': e.problem ? 'bad' : e.flows?.refused || e.flows?.unanswered ? 'warn' : 'good' },
        h('span', { class: 'pill' }, e.problem ? e.problem.code : e.flows ? `answered ${e.flows.answered} of the last ${e.flows.answered + (e.flows.refused ?? 0) + (e.flows.unanswered ?? 0)}` : 'should answer'), ' ', h('b', null, e.pod || e.address), h('span', { class: 'hint' }, ` ${[e.pod && e.address, e.node && `on ${e.node}`].filter(Boolean).join(' ')}`)))))));
    this.tryIt(a);
    this.columns.hidden = !path;
    if (!path) return;
    this.picture.show(path);
    replace(this.side, candidates(path), facts(path), raw(path));
  }
}
