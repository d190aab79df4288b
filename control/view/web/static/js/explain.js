// The view that simulates a packet.

import { post, topology } from './api.js';
import { h, replace } from './dom.js';
import { blame, field } from './form.js';
import { Inquiry, input } from './inquiry.js';
import { OFFERED, join, places, services } from './suggest.js';
import { sentence, state, tone } from './words.js';
import { verdicts } from './vocabulary.js';

export class ExplainView extends Inquiry {
  title = 'Explain';

  constructor(route) {
    const protocol = h('select', null, ['TCP', 'UDP', 'SCTP'].map((p) => h('option', { value: p }, p)));
    const node = h('select', null, h('option', { value: '' }, 'the deciding node'));
    const source = input('sources', '10.244.1.9 or pod/NAMESPACE/NAME'), destination = input('destinations', '10.96.0.10:53 or service/NAMESPACE/NAME:PORT');
    const local = h('input', { type: 'checkbox' });
    super({ protocol, node, source, destination, local }, 'source', 'destination', 'The simulated path of the packet');
    this.build({
      name: 'explain', heading: 'Explain a packet', button: 'Explain',
      fields: [h('div', { class: 'pair-fields' }, field('protocol', 'Protocol', protocol), field('node', 'Seen from node', node)),
        field('source', 'Source', source, 'An address or a pod; the port is optional.'), field('destination', 'Destination', destination, 'An address or a service, with a port.'),
        h('div', { class: 'field-box check', 'data-field': 'local' }, h('label', null, local, 'Sent by the node itself'), h('p', { class: 'wrong', role: 'alert', hidden: true }))],
      invitation: [h('p', null, 'Simulate a packet: its endpoint, the rules it matches, and why other endpoints are excluded.'), h('p', { class: 'hint' }, 'No packet is sent. The simulation uses the node’s service table and kube-proxy’s rules.')],
    });
    this.suggest().then(() => this.update(route)).catch((e) => blame(this.form, { field: '', message: e.message }));
  }

  /** suggest fills in names and addresses of the cluster. */
  async suggest() {
    const [t, all] = await Promise.all([topology(), services(this.abort.signal)]);
    replace(this.sources, places(t.pods, 'pod/'), t.hosts.slice(0, OFFERED).flatMap((x) => x.addresses.map((a) => h('option', { value: a }, x.name))));
    replace(this.destinations, all.map((sv) => [
      h('option', { value: `service/${sv.namespace}/${sv.name}:${sv.portName || sv.port}` }, `${sv.protocol} ${sv.clusterIP}:${sv.port}`),
      sv.nodePort ? t.nodes.filter((n) => n.addresses.length > 0).slice(0, 3).map((n) => h('option', { value: join(n.addresses[0], sv.nodePort) }, `node port of ${sv.service} on ${n.name}`)) : null,
      sv.loadBalancerIPs?.map((ip) => h('option', { value: join(ip, sv.port) }, `load balancer of ${sv.service}`)),
    ]));
    this.inputs.node.append(...t.nodes.map((n) => h('option', { value: n.name }, n.name)));
    if (t.nodes.length > 1) this.inputs.node.options[0].textContent = 'choose a node';
  }

  ask(question) { return post('/v1/explain', { ...question, reply: true }, this.abort.signal); }

  show(r) {
    replace(this.head, h('h2', null, sentence(r)), h('span', { class: 'pill', 'data-tone': r.verdict === 'dnat' ? 'good' : tone(state(r)) }, verdicts[r.verdict]?.text ?? r.verdict), r.hint && h('p', { class: 'hint-box' }, r.hint));
    this.draw(r);
  }
}
