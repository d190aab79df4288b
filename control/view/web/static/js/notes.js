// Notes about records that the page missed.

import { plural } from './format.js';
import { stream } from './stream.js';
import { missed } from './words.js';

const NOTICE = 30000; // milliseconds for which a note is shown

/** missedNotes are sentences about the records missed lately. */
export function missedNotes() {
  const lately = [...stream.missed].filter(([, m]) => performance.now() - m.at < NOTICE);
  const notes = lately.map(([why, m]) => `${m.count > 0 ? plural(m.count, 'record') : 'Records'} missed: ${missed[why] ?? why}.`); // 0: the number is not known
  return notes.length > 0 ? [...notes, 'The counts do not include them.'] : notes;
}
