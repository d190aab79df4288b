// The forms of a lab for pods and manifests. act sends a change, and shows errors in the form.

import { h, replace } from './dom.js';
import { blame, field } from './form.js';

const EXAMPLE = `apiVersion: v1
kind: Service
metadata: {name: web2}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]`;

/** form is one that opens by its title, with a place for errors of no field. */
export function form(title, submit, label, ...fields) {
  const element = h('form', { class: 'form', novalidate: true, onsubmit: (e) => { e.preventDefault(); submit(element); } },
    fields, h('p', { class: 'wrong all', role: 'alert', hidden: true }), h('button', { type: 'submit', class: 'button primary' }, label));
  return h('details', { class: 'lab-form' }, h('summary', null, title), element);
}

export const text = (placeholder, props) => h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder, ...props });

/** setOptions changes the options of a select, if they differ, and keeps what is chosen. */
export function setOptions(select, options) {
  const key = JSON.stringify(options);
  if (select.dataset.options === key) return;
  select.dataset.options = key;
  const chosen = select.value;
  replace(select, options.map(([value, label]) => h('option', { value }, label)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

const list = (value) => value.split(/[\s,]+/).filter(Boolean);

/** labelsOf reads KEY=VALUE, separated by commas; null: it is wrong. */
function labelsOf(value) {
  const pairs = list(value).map((pair) => pair.split('='));
  return pairs.every((p) => p.length === 2 && p[0]) ? Object.fromEntries(pairs) : null;
}

/** portsOf reads PORT, NAME:PORT and PORT/udp, separated by commas; null: they are wrong. */
function portsOf(value) {
  const ports = list(value).map((word) => /^(?:([a-z][a-z0-9-]*):)?(\d{1,5})(?:\/(tcp|udp))?$/i.exec(word));
  return ports.every((m) => m && m[2] > 0 && m[2] < 65536) ? ports.map(([, name, port, protocol]) => ({ name: name ?? '', port: Number(port), protocol: (protocol ?? 'tcp').toUpperCase() })) : null;
}

/** podForm adds a pod. */
export function podForm(act) {
  const name = text('NAMESPACE/NAME, or NAME'), labels = text('app=web'), ports = text('8080, http:80, 53/udp'), node = h('select');
  const element = form('Add a pod', (where) => {
    const [, namespace, pod] = /^(?:([^/]*)\/)?(.*)$/.exec(name.value.trim());
    const addPod = { name: pod, namespace: namespace || 'default', node: node.value, labels: labelsOf(labels.value), ports: portsOf(ports.value) };
    if (!pod) blame(where, { field: 'addPod.name', message: 'The pod needs a name.' });
    else if (!addPod.labels) blame(where, { field: 'addPod.labels', message: 'Want KEY=VALUE, separated by commas.' });
    else if (!addPod.ports) blame(where, { field: 'addPod.ports', message: 'Want PORT, NAME:PORT or PORT/udp with ports from 1 to 65535, separated by commas.' });
    else act({ addPod }, where);
  }, 'Add the pod', h('div', { class: 'grid-fields' },
    field('addPod.name', 'Name', name), field('addPod.node', 'Node', node), field('addPod.labels', 'Labels', labels, 'For the selectors of Services.'), field('addPod.ports', 'Ports', ports, 'Its server answers with its name.')));
  return { element, setNodes: (nodes) => setOptions(node, [['', 'any'], ...nodes.map((n) => [n.name, n.name])]) };
}

/** manifestForm applies a manifest. */
export function manifestForm(act) {
  const manifest = h('textarea', { rows: 9, spellcheck: 'false', autocomplete: 'off', class: 'mono' });
  return form('Apply a manifest', (where) => {
    if (manifest.value.trim()) act({ apply: manifest.value }, where);
    else blame(where, { field: 'apply', message: 'Paste a Service, EndpointSlice, Deployment or Pod, in YAML or JSON.' });
  }, 'Apply', field('apply', 'Manifest', manifest),
  h('button', { type: 'button', class: 'button', onclick: () => { manifest.value = EXAMPLE; manifest.focus(); } }, 'Fill in an example'));
}

/** deletionForm deletes an object. */
export function deletionForm(act) {
  const kind = h('select', null, ['Service', 'EndpointSlice', 'Deployment', 'Pod'].map((k) => h('option', { value: k }, k))), name = text('NAMESPACE/NAME, or NAME');
  return form('Delete an object', (where) => {
    if (name.value.trim()) act({ delete: { kind: kind.value, name: name.value.trim() } }, where);
    else blame(where, { field: 'delete.name', message: 'The object needs a name.' });
  }, 'Delete', h('div', { class: 'grid-fields' }, field('delete.kind', 'Kind', kind), field('delete.name', 'Name', name)));
}
