// Notes about records that the page missed.

import { moment, plural } from './format.js';
import { stream } from './stream.js';
import { missed } from './words.js';

const NOTICE = 30000; // milliseconds for which a note is shown

const GAPS = 3; // of a history, with their times

/** gapNotes are sentences about what a history lacks of the time. */
export function gapNotes() {
  const at = (time) => moment(time).replace(/\.\d+$/, '');
  const gap = ({ why, missed: n, node, from, to }) => `${why === 'not-recorded' ? 'Nothing was recorded' : `${n > 0 ? plural(n, 'record') : 'Records'} missing`} from ${at(from)} to ${at(to)}${node ? ` (${node})` : ''}${why === 'not-recorded' ? '' : `: ${missed[why] ?? why}`}.`;
  const more = stream.gaps.length - GAPS;
  return [...stream.gaps.slice(0, GAPS).map(gap), ...(more > 0 ? [`And ${plural(more, 'more gap')}.`] : [])];
}

/** missedNotes are sentences about the records missed lately. */
export function missedNotes() {
  const lately = [...stream.missed].filter(([, m]) => performance.now() - m.at < NOTICE);
  const notes = lately.map(([why, m]) => `${m.count > 0 ? plural(m.count, 'record') : 'Records'} missed: ${missed[why] ?? why}.`); // 0: the number is not known
  return notes.length > 0 ? [...notes, 'The counts do not include them.'] : notes;
}
