package otlp

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestScrape: the metrics of a page, in the order of their names; another answer is an error.
func TestScrape(t *testing.T) {
	answer := "# TYPE b counter\nb{x=\"1\"} 2\n# TYPE a gauge\na 3\n"
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer s.Close()
	list, err := Scrape(s.URL).Gather()
	if err != nil || len(list) != 2 || list[0].GetName() != "a" || list[1].GetMetric()[0].GetCounter().GetValue() != 2 {
		t.Errorf("%v, %v", list, err)
	}
	answer = "{"
	if list, err := Scrape(s.URL).Gather(); err == nil {
		t.Errorf("nonsense: %v", list)
	}
	answer, status = "", http.StatusServiceUnavailable
	if list, err := Scrape(s.URL).Gather(); err == nil {
		t.Errorf("no metrics: %v", list)
	}
}
