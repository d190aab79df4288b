// The lists of a lab: deployments, nodes, pods and faults, with their buttons. view is the LabView, which acts.

import { h } from './dom.js';
import { named } from './row.js';

const button = (key, label, subject, onclick, props) => h('button', { type: 'button', class: 'button small', 'data-key': `${key} ${subject}`, 'aria-label': `${label}: ${subject}`, onclick, ...props }, label);

const pill = (tone, text) => h('span', { class: 'pill', 'data-tone': tone }, text);

const row = (key, name, about, pills, buttons) => h('li', { 'data-name': key }, h('div', { class: 'what' }, h('span', { class: 'name' }, name), about && h('span', { class: 'address' }, about)), h('div', { class: 'pills' }, pills), h('div', { class: 'buttons' }, buttons));

const none = (text) => h('li', { class: 'none' }, text);

const MOST = 1000; // replicas, as the server has it

export const deployments = (list, view) => list.map((d) => row(d.name, named(d.name), null,
  pill(d.ready === d.replicas ? 'good' : 'warn', `${d.ready} of ${d.replicas} ready`),
  h('span', { class: 'stepper', role: 'group', 'aria-label': `Replicas of ${d.name}` },
    button('down', '−', d.name, () => view.scale(d.name, -1), { 'aria-label': `One replica fewer: ${d.name}`, disabled: d.replicas === 0 }), h('b', null, d.replicas),
    button('up', '+', d.name, () => view.scale(d.name, 1), { 'aria-label': `One replica more: ${d.name}`, disabled: d.replicas >= MOST }))));

const daemonTones = { starting: 'wait', stopped: 'bad', dead: 'bad' };

export const nodes = (list, view) => list.map((n) => row(n.name, n.name, n.addresses.join(' '),
  [pill(n.down ? 'bad' : 'good', n.down ? 'no connection' : 'connected'), n.cordoned && pill('warn', 'no new pods'), n.daemon.state !== 'ready' && pill(daemonTones[n.daemon.state] ?? 'pass', daemonTones[n.daemon.state] ? `daemon ${n.daemon.state}` : n.daemon.state),
    n.observer && pill(n.observer.state === 'ready' ? 'good' : daemonTones[n.observer.state] ?? 'bad', n.observer.state === 'ready' ? 'observed' : `observer ${n.observer.state}`)],
  [n.down ? button('link', 'Connect', n.name, () => view.nodeEvent(n.name, 'up')) : button('link', 'Disconnect', n.name, () => view.nodeEvent(n.name, 'down')),
    n.cordoned ? button('drain', 'Uncordon', n.name, () => view.nodeEvent(n.name, 'uncordon')) : button('drain', 'Drain', n.name, () => view.nodeEvent(n.name, 'drain'))]));

const podTones = { ready: 'good', 'not ready': 'bad', terminating: 'wait' };

export const pods = (list, down, view) => list.map((p) => row(p.name, named(p.name), [p.addresses.join(' '), p.node].filter(Boolean).join(' on '),
  [pill(podTones[p.state], p.state), p.server === 'stopped' && pill('bad', 'server stopped')],
  p.state !== 'terminating' && [
    !down.includes(p.node) && (p.state === 'ready' ? button('ready', 'Make unready', p.name, () => view.setReady(p.name, false)) : button('ready', 'Make ready', p.name, () => view.setReady(p.name, true))),
    p.server && (p.server === 'running' ? button('server', 'Stop server', p.name, () => view.setServing(p.name, false)) : button('server', 'Start server', p.name, () => view.setServing(p.name, true))),
    button('remove', 'Remove', p.name, () => view.removePod(p.name), { class: 'button small danger' })]));

export const faults = (list, view) => (list.length === 0 ? none('No faults.') : list.map((f) => row(String(f.id), [h('span', { class: 'ns' }, `${f.id}  `), f.text], null, null,
  button('mend', 'Remove', `fault ${f.id}`, () => view.do(() => view.removeFault(f.id))))));
