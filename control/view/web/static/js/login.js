// The form for the token, where the server requires one for every request: at a port of a node.

import { h, replace } from './dom.js';
import { field } from './form.js';

const STRANGE = 'A token has printable ASCII characters and no spaces.';
let open = null; // the promise of the form that is open

/** signIn prompts for a token until one is accepted, and returns it: attempt(token) returns the error, or ''. All waiting requests share one form. */
export function signIn(wrong, attempt) {
  open ??= new Promise((resolve) => show(wrong, attempt, resolve)).finally(() => { open = null; });
  return open;
}

function show(wrong, attempt, resolve) {
  const input = h('input', { type: 'password', autocomplete: 'off', required: true });
  const problem = h('p', { class: 'problem', role: 'alert', hidden: !wrong }, wrong);
  const button = h('button', { type: 'submit', class: 'button primary' }, 'Sign in');
  const submit = async (e) => {
    e.preventDefault();
    const value = input.value.trim();
    button.disabled = true;
    const refusal = /^[!-~]+$/.test(value) ? await attempt(value) : STRANGE;
    button.disabled = false;
    replace(problem, refusal);
    problem.hidden = !refusal;
    if (refusal) { input.select(); return; }
    dialog.close();
    dialog.remove();
    resolve(value);
  };
  const dialog = h('dialog', { id: 'sign-in', 'aria-labelledby': 'sign-in-title', oncancel: (e) => e.preventDefault() },
    h('form', { class: 'form narrow', onsubmit: submit },
      h('h2', { id: 'sign-in-title' }, 'Sign in'), h('p', { class: 'hint' }, 'This server requires a token for every request: the content of its --flow-api-token-file. The token is kept in this tab until you close it.'),
      field('sign-in-token', 'Token', input), problem, button));
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}
