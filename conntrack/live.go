package conntrack

// HasTranslated says whether a connection that carries the mark is translated and not over:
// without its translation, its next packet would be lost.
func (t *Table) HasTranslated(mark uint32) (found bool, err error) {
	for _, f := range []Filter{{}, {IPv6: true}} {
		// A dump with gaps is as good as any, if something was found.
		if err = t.Dump(f, func(s *State) { found = found || s.Mark&mark != 0 && s.needsTranslation() }); found {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// needsTranslation says whether packets of the connection may come that have to be
// translated.
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
