// The list of shortcuts.

import { h, icon, replace } from './dom.js';

const shortcuts = [
  ['Everywhere', [['g o', 'overview'], ['g f', 'flows'], ['g s', 'services'], ['g m', 'map'], ['g w', 'why'], ['g h', 'hold'], ['g l', 'lab'], ['g c', 'course'], ['t', 'dark or light'], ['l', 'large text'], ['?', 'this help'], ['Esc', 'close, or back']]],
  ['Flows', [['/', 'filter; find services'], ['j  k', 'next and previous flow (pauses)'], ['Enter', 'open the flow'], ['Tab', 'move through its values; Enter filters by one'], ['p', 'pause and resume']]],
  ['A course', [['a', 'answer'], ['n', 'next'], ['F2', 'text or shell'], ['u', 'units'], ['p', 'projector view']]],
  ['A held flow', [['s', 'step'], ['b', 'back'], ['r', 'release'], ['d', 'drop']]],
];

export function showHelp() {
  const dialog = document.getElementById('help');
  replace(dialog, h('header', null, h('h2', { id: 'help-title' }, 'Keyboard shortcuts'), h('button', { type: 'button', class: 'switch', 'aria-label': 'Close', onclick: () => dialog.close() }, icon('close'))),
    h('div', { class: 'shortcuts' }, shortcuts.map(([title, list]) => h('section', null, h('h3', null, title),
      h('dl', null, list.map(([keys, what]) => [h('dt', null, keys.split(/ +/).map((k) => h('kbd', null, k))), h('dd', null, what)]))))));
  dialog.onclick = (e) => { if (e.target === dialog) dialog.close(); };
  dialog.showModal();
}
