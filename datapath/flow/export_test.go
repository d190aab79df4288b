package flow

// What a story says for the codes of a record; empty where it knows none.

// ExclusionInWords gives the words for a decision.Exclusion.
func ExclusionInWords(code string) string { return exclusions[code] }

// ReasonInWords gives the words for a decision.Reason.
func ReasonInWords(code string) string { return reasons[code] }

// EntryInWords gives the words for a decision.Entry.
func EntryInWords(code string) string { return entries[code] }

// MarkInWords gives the words for a decision.Mark.
func MarkInWords(code string) string { return marks[code] }
