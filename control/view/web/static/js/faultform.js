// The form that adds a fault: its fields are those of the kind.

import { h, replace } from './dom.js';
import { blame, field } from './form.js';
import { form, setOptions, text } from './labforms.js';
import { services } from './suggest.js';

const title = (name) => name[0].toUpperCase() + name.slice(1);

export class FaultForm {
  /** add gets a fault, and the form for errors. */
  constructor(add) {
    this.kinds = [];
    this.kind = h('select', { onchange: () => this.showKind() });
    this.host = h('select');
    this.what = h('p', { class: 'hint' });
    this.fields = h('div', { class: 'grid-fields' });
    this.addresses = h('datalist', { id: 'lab-addresses' });
    this.element = form('Add a fault', (where) => {
      const fault = this.fault(where);
      if (fault) add(fault, where);
    }, 'Add the fault', h('div', { class: 'grid-fields' }, field('kind', 'Kind', this.kind), field('host', 'Where', this.host)), this.what, this.fields, this.addresses);
    this.element.addEventListener('toggle', () => this.suggest());
  }

  setKinds(kinds) {
    this.kinds = kinds;
    setOptions(this.kind, kinds.map((k) => [k.name, k.name]));
    this.showKind();
  }

  get chosen() { return this.kinds.find((k) => k.name === this.kind.value); }

  /** setHosts offers the hosts there are now. */
  setHosts(status) {
    this.status = status;
    if (!this.chosen) return;
    const names = (list) => list.map((x) => [x.name, x.name]);
    setOptions(this.host, this.chosen.nodesOnly ? names(status.nodes) : [...names(status.nodes), ...names(status.pods), ...names(status.clients)]);
  }

  /** showKind shows the fields of the kind that is chosen. What is in fields with the same name stays. */
  showKind() {
    if (!this.chosen) return;
    const before = this.inputs ?? {};
    this.inputs = Object.fromEntries(this.chosen.parameters.map((p) => [p.name, before[p.name] ?? this.input(p)]));
    replace(this.what, `${title(this.chosen.what)}.`);
    replace(this.fields, this.chosen.parameters.map((p) => (p.type === 'flag'
      ? h('div', { class: 'field-box check', 'data-field': p.name }, h('label', null, this.inputs[p.name], title(p.what)), h('p', { class: 'wrong', role: 'alert', hidden: true }))
      : field(p.name, p.required ? title(p.name) : `${title(p.name)} (optional)`, this.inputs[p.name], `${title(p.what)}.`))));
    if (this.status) this.setHosts(this.status);
  }

  input(p) {
    if (p.type === 'flag') return h('input', { type: 'checkbox' });
    if (p.type === 'choice') return h('select', null, p.options.map((o) => h('option', { value: o }, o)));
    return text(p.example, { inputmode: p.type === 'number' ? 'decimal' : null, list: p.name === 'to' || p.name === 'via' ? 'lab-addresses' : null });
  }

  /** fault is what the fields have; null: one of them is wrong, and blamed. */
  fault(where) {
    const fault = { kind: this.kind.value, host: this.host.value };
    for (const p of this.chosen?.parameters ?? []) {
      const input = this.inputs[p.name], value = input.value.trim();
      if (p.type === 'flag') fault[p.name] = input.checked;
      else if (p.type === 'number' && value && Number.isNaN(Number(value))) { blame(where, { field: p.name, message: `"${value}" is not a number.` }); return null; }
      else if (value && (p.type !== 'choice' || fault.port)) fault[p.name] = p.type === 'number' ? Number(value) : value; // a protocol belongs to a port
    }
    return fault;
  }

  /** suggest fills in addresses, once they can be seen. */
  async suggest() {
    if (!this.element.open || !this.status) return;
    const of = (x) => x.addresses.map((a) => h('option', { value: a }, x.name));
    const hosts = [...this.status.pods, ...this.status.nodes, ...this.status.clients].flatMap(of);
    try {
      replace(this.addresses, hosts, [...new Map((await services()).map((sv) => [sv.clusterIP, sv])).values()].map((sv) => h('option', { value: sv.clusterIP }, `Service ${sv.namespace}/${sv.name}`)));
    } catch { replace(this.addresses, hosts); }
  }
}
