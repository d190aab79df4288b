// The view that finds out why a connection fails, or that it works.

import { post, topology } from './api.js';
import { h, replace } from './dom.js';
import { finding, whyLink } from './finding.js';
import { blame, field } from './form.js';
import { Inquiry, input } from './inquiry.js';
import { requester } from './request.js';
import { places, services } from './suggest.js';

export class WhyView extends Inquiry {
  title = 'Why';

  constructor(route) {
    const from = input('sources', 'a pod, a node, an address, or outside'), to = input('destinations', 'web.shop:80, or an address with a port');
    const protocol = h('select', null, [['', 'by the port'], ['TCP', 'TCP'], ['UDP', 'UDP'], ['SCTP', 'SCTP']].map(([value, text]) => h('option', { value }, text)));
    const node = h('select', null, h('option', { value: '' }, 'by the source'));
    super({ from, to, protocol, node }, 'from', 'to', 'The path of the first packet');
    this.cause = h('ul', { class: 'findings' });
    this.ends = h('div', { class: 'ends' });
    this.attempt = h('div');
    this.examples = h('div', { class: 'examples' });
    this.build({
      name: 'why', heading: 'Why?', button: 'Why?',
      fields: [field('from', 'From', from, 'Where the connection starts.'), field('to', 'To', to, 'A service by its DNS name, a pod (pod/NAMESPACE/NAME), a node or an address.'),
        h('div', { class: 'pair-fields even' }, field('protocol', 'Protocol', protocol), field('node', 'Deciding node', node))],
      invitation: [h('p', null, 'Why does a service not answer? Name a source and a destination.'), h('p', { class: 'hint' }, 'The answer comes from the cluster’s objects, its service tables and recent flows. No packet is sent.'), this.examples],
      result: [this.cause, this.ends, this.attempt],
    });
    this.element.classList.add('inquiry');
    this.suggest().catch((e) => blame(this.form, { field: '', message: e.message })).then(() => this.update(route));
  }

  /** suggest fills in names of the cluster: of lists, and of examples where no question was put yet. */
  async suggest() {
    const [t, all] = this.known = await Promise.all([topology(), services(this.abort.signal)]);
    const to = (sv) => `${sv.name}.${sv.namespace}:${sv.port}`;
    replace(this.sources, h('option', { value: 'outside' }), places(t.pods), t.nodes.map((n) => h('option', { value: n.name }, 'node')), t.hosts.map((x) => h('option', { value: x.name }, 'outside of the cluster')));
    replace(this.destinations, all.map((sv) => h('option', { value: to(sv) }, `${sv.protocol} ${sv.clusterIP}`)));
    this.inputs.node.append(...t.nodes.map((n) => h('option', { value: n.name }, n.name)));
    if (t.pods.length === 0 || all.length === 0) return;
    const examples = [[t.pods[0].name, all[0]], ['outside', all.find((sv) => sv.nodePort) ?? all[0]]].map(([from, sv]) => ({ from, to: to(sv) }));
    replace(this.examples, examples.map((q) => h('a', { class: 'button small', href: whyLink(q) }, `${q.from} → ${q.to}`)));
  }

  async ask(question) {
    const answer = await post('/v1/why', question, this.abort.signal);
    return { answer, path: answer.record && await this.walk(answer) };
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

  show({ answer: a, path }) {
    const name = (end) => (end.name.startsWith('an address') && end.address ? end.address : end.name);
    const from = name(a.source), to = name(a.destination);
    replace(this.head, h('h2', null, `${from} → ${to}`), h('span', { class: 'pill headline', 'data-tone': { works: 'good', partly: 'warn' }[a.outcome] ?? 'bad' }, a.headline));
    replace(this.cause, [a.cause, ...(a.notes ?? [])].filter(Boolean).map((f) => finding(f, { open: f === a.cause })));
    const row = (term, ...value) => [h('dt', null, term), h('dd', null, value)];
    replace(this.ends, h('dl', { class: 'facts card-box' },
      a.source.address && row('Source', a.source.address), a.destination.address && row('Destination', a.destination.address),
      a.nodeIs && row('Node', a.node ? `${a.node}: ${a.nodeIs}` : `not known: ${a.nodeIs}`),
      a.passed?.map((p) => row('Before', `${p.node} passes it on unchanged: ${p.is}`)),
      a.endpoints?.length > 0 && row('Endpoints', h('ul', { class: 'answering' }, a.endpoints.map((e) => h('li', { 'data-tone': e.problem ? 'bad' : e.flows?.refused || e.flows?.unanswered ? 'warn' : 'good' },
        h('span', { class: 'pill' }, e.problem ? e.problem.code : e.flows ? `answered ${e.flows.answered} of the last ${e.flows.answered + (e.flows.refused ?? 0) + (e.flows.unanswered ?? 0)}` : 'should answer'), ' ', h('b', null, e.pod || e.address), h('span', { class: 'hint' }, ` ${[e.pod && e.address, e.node && `on ${e.node}`].filter(Boolean).join(' ')}`)))))));
    this.tryIt(a);
    this.columns.hidden = !path;
    if (path) this.draw(path);
  }
}
