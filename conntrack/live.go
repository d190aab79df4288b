package conntrack

// HasTranslated reports whether a connection with the mark is translated and still open: without
// its translation, its next packet would be lost.
func (t *Table) HasTranslated(mark uint32) (found bool, err error) {
	for _, f := range []Filter{{}, {IPv6: true}} {
		// One match is enough, even from a dump with gaps.
		if err = t.Dump(f, func(s *State) { found = found || s.Mark&mark != 0 && s.needsTranslation() }); found {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// needsTranslation reports whether more packets of the connection may arrive that need
// translation.
func (s *State) needsTranslation() bool {
	if s.Status&(StatusSourceNAT|StatusDestinationNAT) == 0 {
		return false
	}
	switch s.Original.Protocol {
	case protoTCP:
		return s.TCP != TCPTimeWait && s.TCP != TCPClose
	case protoSCTP:
		return s.SCTP != SCTPClosed
	}
	return true
}
